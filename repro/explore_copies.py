"""The engine's copies on simulated streams: queued by one thread, run when the stage decides."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hicache_dbg.pools import transfer
from hicache_dbg.pools.backends import BoundMove, Copier, copier_for
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.plan import Move
from hicache_dbg.pools.streams import Stream, Streams
from hicache_dbg.tracer.attach.hicache_streams import Kernel

__all__ = ["copies_on"]

#: Layers of a load that are in flight together, as on a GPU.
IN_FLIGHT = 2
#: Name of the function by which the engine finds a copier.
_PLACE = "copier_for"


@contextmanager
def copies_on(streams: Streams) -> Iterator[None]:
    """Run every copy of this process's engines as work on ``streams``.

    The engine looks up a copier by device type. Simulated streams have no device type, so this
    replaces the lookup itself.
    """

    def on_streams(device_type: str, backend: IoBackend) -> Copier:
        return _Copier(copier_for(device_type, backend), streams)

    setattr(transfer, _PLACE, on_streams)
    try:
        yield
    finally:
        setattr(transfer, _PLACE, copier_for)


class _Copier:
    in_flight = IN_FLIGHT

    def __init__(self, copier: Copier, streams: Streams) -> None:
        self._copier = copier
        self._streams = streams

    def bind(self, move: Move, *, to_host: bool) -> "_Move":
        bound = self._copier.bind(move, to_host=to_host)
        what = "+".join(piece.component for piece in move.pieces)
        return _Move(bound, what, self._streams.stream("backup" if to_host else "load"))


class _Move:
    stream: int | None = None  # none of a device

    def __init__(self, bound: BoundMove, what: str, stream: Stream) -> None:
        self._bound = bound
        self._what = what
        self._stream = stream

    def copy(self, layers: Sequence[int]) -> None:
        for layer in layers:
            self._stream.submit(Kernel(f"copy {self._what} layer {layer}", self._one(layer), ()))

    def _one(self, layer: int) -> Callable[[], None]:
        return lambda: self._bound.copy((layer,))

    def mark(self) -> Callable[[], None]:
        return self._stream.record().synchronize
