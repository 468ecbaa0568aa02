"""Select the copier for a device type and io backend; CUDA's is imported on first use."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.plan import Move

__all__ = ["BoundMove", "Copier", "copier_for"]


class Copier(Protocol):
    """Moves the bytes of whole moves, one or several layers at a time."""

    #: How many layers a load keeps in flight before it waits for the oldest one; 0 if ``copy``
    #: is synchronous.
    in_flight: int

    def bind(self, move: Move, *, to_host: bool) -> "BoundMove":
        """Prepare ``move`` for execution; no byte moves yet."""
        ...


class BoundMove(Protocol):
    """A prepared move that can be executed layer by layer."""

    @property
    def stream(self) -> int | None:
        """Raw handle of the stream the copies are queued on; None if ``copy`` is synchronous."""
        ...

    def copy(self, layers: Sequence[int]) -> None:
        """Copy all ids of ``layers`` (the pool's own layer numbers), or queue those copies."""
        ...

    def mark(self) -> Callable[[], None]:
        """Return a function that blocks until everything queued so far has arrived."""
        ...


_COPIERS: dict[tuple[str, IoBackend], tuple[str, str]] = {
    ("cpu", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cpu", "kernel"),
    ("cpu", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cpu", "direct"),
    ("cuda", IoBackend.KERNEL): ("hicache_dbg.pools.copies_cuda", "kernel"),
    ("cuda", IoBackend.DIRECT): ("hicache_dbg.pools.copies_cuda", "direct"),
}


@cache
def copier_for(device_type: str, backend: IoBackend) -> Copier:
    """Return the copier for device pools on ``device_type`` (``cpu`` or ``cuda``).

    Raises:
        ValueError: the device type has no copier.
    """
    try:
        module, name = _COPIERS[device_type, backend]
    except KeyError:
        known = sorted({kind for kind, _ in _COPIERS})
        raise ValueError(
            f"no copies for device type {device_type!r} and io backend {backend}, "
            f"expected a device of type {' or '.join(known)}"
        ) from None
    return cast("Copier", getattr(import_module(module), name)())
