"""What the model's kernels touch, reported as a GPU would execute it: on a separate stream.

On a CPU the model's reads and writes are complete when they return, so a copy that does not wait
for them does no harm; on a GPU it would. They are therefore reported on a stream that executes work
at once, and the engine gets an event of that stream to wait for. The tracer's ordering check then
finds a missing wait, whether or not a byte went wrong.
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
    """Receives what the model's kernels touch."""

    def read(self, layer: int, pages: Ids) -> None:
        """Report that the model's ``layer`` is about to be read, in these pages."""
        ...

    def write(self, pages: Ids) -> None:
        """Report that every layer of these pages was written."""
        ...


class Untold:
    """Ignores reports: on a device with streams, the device's own events are observed."""

    def read(self, layer: int, pages: Ids) -> None:
        """Ignore a read."""

    def write(self, pages: Ids) -> None:
        """Ignore a write."""


class _AtOnce(SimulatedStreams):
    """Streams that execute work at once, so any thread may wait for them."""

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Do nothing: nothing is ever left to run."""
        if not reached():
            raise StreamError("an event of a stream that does its work at once is not passed")


class ToldKernels:
    """Kernels of a model on the CPU.

    The engine's copies are ordered after those reported so far.
    """

    def __init__(self, controller: HiCacheController) -> None:
        self._pools = tuple(controller.group.device.values())
        self._forward = _AtOnce().stream("forward")
        inside(controller).mark = self._mark

    def read(self, layer: int, pages: Ids) -> None:
        """Queue a kernel that reads a layer, in every pool that has it."""
        touches = (
            Touch(pool, (pool.geometry.layer_ids.index(layer),), pages.tolist(), writes=False)
            for pool in self._pools
            if layer in pool.geometry.layer_ids
        )
        self._put(f"read layer {layer}", tuple(touches) if pages.size else ())

    def write(self, pages: Ids) -> None:
        """Queue a kernel that writes every layer of every pool."""
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
    """Do nothing: the work was done before it was reported."""
