"""Compare the host tier's configured size with the memory its pools really hold."""

from collections.abc import Iterable
from weakref import WeakSet

from hicache_dbg.tracer.checks.pinning import PoolBudget, check_budget
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["HostBudget"]


class HostBudget:
    """Adds up the host memory of all live mirrors, counting shared memory once.

    Pools are registered one by one, so only an excess is reported, and only once.

    Args:
        gigabytes: configured size in units of 10^9 bytes; 0 if unknown.
    """

    def __init__(self, gigabytes: float) -> None:
        self._budget = PoolBudget(int(gigabytes * 1e9), {"HICACHE_DBG_HOST_GB": gigabytes})
        self._mirrors: WeakSet[MirrorViews] = WeakSet()
        self._told = not gigabytes

    def hold(self, mirrors: Iterable[MirrorViews], *, time_ns: int, rank: int) -> list[Finding]:
        """Add ``mirrors`` and return what is wrong with all of them together."""
        if self._told:
            return []
        self._mirrors.update(mirrors)
        real = self._real()
        if sum(real.values()) <= self._budget.given:
            return []
        found = check_budget(self._budget, real, time_ns=time_ns, rank=rank)
        self._told = bool(found)
        return found

    def _real(self) -> dict[str, int]:
        """Return bytes by pool; memory that two mirrors share counts for the first one."""
        real: dict[str, int] = {}
        seen: set[tuple[int, ...]] = set()
        for mirror in sorted(self._mirrors, key=lambda mirror: mirror.pool):
            for view in mirror.host.values():
                if view.bases not in seen:
                    seen.add(view.bases)
                    size = view.page_span * view.pages * view.layers
                    real[mirror.pool] = real.get(mirror.pool, 0) + size
        return real
