"""Layer gates of a load: no reader sees a layer before its bytes have arrived."""

from collections.abc import Sequence
from threading import Condition

from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import TransferError

__all__ = ["Load", "LoadTicket"]

#: How long a reader waits for a layer before it gives up, in seconds.
GATE_TIMEOUT_S = 120.0


class Load:
    """One load in flight: its pages at both ends, its progress, and how many readers use it.

    Layers arrive in ascending order, so one number says which gates are open.
    """

    def __init__(self, op_id: int, host: Ids, device: Ids, layer_ids: Sequence[int]) -> None:
        self.op_id = op_id
        self.host = host
        self.device = device
        self.users = 0
        self.leftover: Ids = device[:0]  # pages to free once the last user has gone
        self._last = layer_ids[-1]
        self._opened = -1
        self._finished = False
        self._error: BaseException | None = None
        self._changed = Condition()

    @property
    def finished(self) -> bool:
        """Whether every gate is open, or the load has failed."""
        return self._finished

    @property
    def error(self) -> BaseException | None:
        """Why the load failed; None unless it has."""
        return self._error

    def open(self, layer: int) -> None:
        """Open the gate of ``layer``; the last layer's gate opens only with :meth:`finish`."""
        if layer != self._last:
            with self._changed:
                self._opened = layer
                self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        """Open every gate, or fail all present and future waiters with ``error``."""
        with self._changed:
            self._error = error
            self._finished = True
            self._changed.notify_all()

    def wait(self, layer: int, timeout: float) -> None:
        """Block until ``layer`` has arrived.

        Raises:
            TransferError: the load failed.
            TimeoutError: the layer did not arrive within ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._passable(layer), timeout):
                raise TimeoutError(
                    f"load {self.op_id}: layer {layer} did not arrive within {timeout} s, "
                    f"the last to arrive was {self._opened}"
                )
            # A failed load is never partly valid: gates that were open close again.
            if self._error is not None:
                raise TransferError(
                    f"load {self.op_id} of {self.host.size} pages failed: {self._error}"
                ) from self._error

    def _passable(self, layer: int) -> bool:
        return self._finished or layer <= self._opened


class LoadTicket:
    """What the reader of a matched prefix holds: its device pages, and the loads to wait for.

    ``device_pages`` are the pages of the whole matched prefix in order, both those already on the
    device and those being loaded. Waiting is free if nothing is being loaded.
    """

    __slots__ = ("device_pages", "loads")

    def __init__(self, device_pages: Ids, loads: tuple[Load, ...]) -> None:
        self.device_pages = device_pages
        self.loads = loads

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return all(load.finished for load in self.loads)

    def wait_layer(self, layer: int, timeout: float = GATE_TIMEOUT_S) -> None:
        """Block until the model's ``layer`` has arrived in every pool.

        Raises as :meth:`Load.wait`.
        """
        for load in self.loads:
            load.wait(layer, timeout)
