"""What the host tier was given, against the bytes of the memory that its pools really hold."""

from collections.abc import Iterable
from weakref import WeakSet

from hicache_dbg.tracer.checks.pinning import PoolBudget, check_budget
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["HostBudget"]


class HostBudget:
    """Adds up the host memory of all mirrors that are alive, each piece of it once.

    Pools come one after the other, so only too much is told, and once.

    Args:
        gigabytes: what was set aside, in units of 10^9 bytes; 0: nobody says.
    """

    def __init__(self, gigabytes: float) -> None:
        self._budget = PoolBudget(int(gigabytes * 1e9), {"HICACHE_DBG_HOST_GB": gigabytes})
        self._mirrors: WeakSet[MirrorViews] = WeakSet()
        self._told = not gigabytes

    def hold(self, mirrors: Iterable[MirrorViews], *, time_ns: int, rank: int) -> list[Finding]:
        """These are there as well; what is wrong with all of them together."""
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
        """Bytes by pool; memory that two mirrors read is the first one's."""
        real: dict[str, int] = {}
        seen: set[tuple[int, ...]] = set()
        for mirror in sorted(self._mirrors, key=lambda mirror: mirror.pool):
            for view in mirror.host.values():
                if view.bases not in seen:
                    seen.add(view.bases)
                    size = view.page_span * view.pages * view.layers
                    real[mirror.pool] = real.get(mirror.pool, 0) + size
        return real
