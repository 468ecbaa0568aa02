"""Which copier serves which device and io backend. CUDA's is imported when first asked for."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.plan import Move

__all__ = ["Copier", "copier_for"]


class Copier(Protocol):
    """Moves the bytes of whole moves, one or many layers at a time."""

    #: How many layers a load keeps under way before it waits for the first: 0 where ``copy``
    #: returns with the bytes in place.
    in_flight: int

    def copy(self, move: Move, layers: Sequence[int], *, to_host: bool) -> None:
        """Move, or begin to move, all ids of ``layers`` (the pool's own numbers)."""
        ...

    def mark(self) -> Callable[[], None]:
        """A function that blocks until everything begun so far has arrived."""
        ...


_COPIERS: dict[tuple[str, IoBackend], tuple[str, str]] = {
    ("cpu", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cpu", "KernelCopier"),
    ("cpu", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cpu", "DirectCopier"),
    ("cuda", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cuda", "KernelCopier"),
    ("cuda", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cuda", "DirectCopier"),
}


@cache
def copier_for(device_type: str, backend: IoBackend) -> Copier:
    """The copier for device pools on ``device_type`` (``cpu``, ``cuda``)."""
    try:
        module, name = _COPIERS[device_type, backend]
    except KeyError:
        known = sorted({kind for kind, _ in _COPIERS})
        raise ValueError(
            f"no copies for device type {device_type!r} and io backend {backend}, "
            f"expected a device of type {' or '.join(known)}"
        ) from None
    return cast("Copier", getattr(import_module(module), name)())
