"""What the model's kernels touch, told as a GPU would do it: on a stream of their own.

On a CPU the model's reads and writes are done when they return, so a copy that does not wait for
them does no harm here; on a GPU it would. They are told on a stream whose work is done at once, and
the engine is given an event of it to wait for. The tracer's check of the order then finds a wait
that is missing, whether or not a byte went wrong.
"""

from collections.abc import Callable
from typing import Protocol

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.streams import Event, SimulatedStreams, StreamError
from hicache_dbg.repro.faults.base import inside
from hicache_dbg.tracer.attach.hicache_streams import Kernel, Touch

__all__ = ["Kernels", "ToldKernels", "Untold"]


class Kernels(Protocol):
    """Told of what the model's kernels touch."""

    def read(self, layer: int, pages: Ids) -> None:
        """The model's ``layer`` is about to be read, in these pages."""
        ...

    def write(self, pages: Ids) -> None:
        """Every layer of these pages was written."""
        ...


class Untold:
    """Tells nobody: on a device with streams, the device's own events say it."""

    def read(self, layer: int, pages: Ids) -> None:
        """Tell nobody of a read."""

    def write(self, pages: Ids) -> None:
        """Tell nobody of a write."""


class _AtOnce(SimulatedStreams):
    """Streams whose work is done before anybody can wait for it, so that any thread may."""

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Nothing is ever left to run."""
        if not reached():
            raise StreamError("an event of a stream that does its work at once is not passed")


class ToldKernels:
    """Kernels of a model on the CPU; the engine's copies come after those told so far."""

    def __init__(self, controller: HiCacheController) -> None:
        self._pools = tuple(controller.group.device.values())
        self._forward = _AtOnce().stream("forward")
        inside(controller).mark = self._mark

    def read(self, layer: int, pages: Ids) -> None:
        """Put a kernel that reads a layer, in every pool that has it, on the stream."""
        touches = (
            Touch(pool, (pool.geometry.layer_ids.index(layer),), pages.tolist(), writes=False)
            for pool in self._pools
            if layer in pool.geometry.layer_ids
        )
        self._put(f"read layer {layer}", tuple(touches) if pages.size else ())

    def write(self, pages: Ids) -> None:
        """Put a kernel that writes every layer of every pool on the stream."""
        touches = (
            Touch(pool, tuple(range(pool.geometry.layers)), pages.tolist(), writes=True)
            for pool in self._pools
        )
        self._put("write", tuple(touches) if pages.size else ())

    def _put(self, name: str, touches: tuple[Touch, ...]) -> None:
        if touches:
            self._forward.submit(Kernel(name, _nothing, touches))
            self._forward.step()

    def _mark(self) -> Event:
        event = self._forward.record()
        self._forward.step()
        return event


def _nothing() -> None:
    """The work itself was done where it is told of."""
