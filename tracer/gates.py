"""The layer gates of a load whose digests are taken by call."""

import time
from collections.abc import Callable, Sequence

from hicache_dbg.tracer.record import CopyRecord

__all__ = ["Gates", "LayerDone"]

LayerDone = Callable[[int], None]


class Gates:
    """Opens the gate of each layer once its bytes have arrived, and digests the layer.

    A layer is digested after its gate has opened, concurrently with its readers. The last layer is
    digested before: with its gate the engine takes the load for complete and releases the pages. If
    a device follows every copy by itself, gates are only opened.

    Args:
        open_gate: opens the gate of a layer, by the model's number.
        take: digests one layer of the given copies.
        join: waits until all their digests are taken.
    """

    def __init__(
        self,
        open_gate: LayerDone,
        take: Callable[[Sequence[CopyRecord], int], None],
        join: Callable[[Sequence[CopyRecord]], None],
    ) -> None:
        self._open, self._take, self._join = open_gate, take, join
        self._records: Sequence[CopyRecord] | None = None
        self._waiting: set[int] = set()
        self._by_call = False
        #: Seconds the digests took within the engine's call.
        self.ours = 0.0

    def begin(self, records: Sequence[CopyRecord]) -> None:
        """Set the load's copies, before its first gate opens; later calls have no effect."""
        if self._records is None:
            self._records = records
            self._by_call = not all(record.is_followed for record in records)
            if self._by_call:
                self._waiting.update(x for record in records for x in record.copy.model_layers)

    def __call__(self, layer: int) -> None:
        """Handle the arrival of a layer's bytes."""
        if not self._by_call:
            self._open(layer)
            return
        records = self._records or ()
        self._waiting.discard(layer)
        if self._waiting:
            self._open(layer)
        began = time.perf_counter()
        self._take(records, layer)
        if not self._waiting:
            self._join(records)
        self.ours += time.perf_counter() - began
        if not self._waiting:
            self._open(layer)

    def take_rest(self, records: Sequence[CopyRecord]) -> None:
        """Digest the layers whose arrival the engine did not report."""
        self.begin(records)
        for layer in self._waiting:
            self._take(records, layer)
