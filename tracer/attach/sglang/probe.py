"""A probe for loads that come as one call per layer, with the layers not known in advance."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Event, Op
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Point, Probe
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum

__all__ = ["LayerProbe", "OpenLoad"]


@dataclass(slots=True)
class OpenLoad:
    """A load of one pool of which some layers have arrived.

    ``record`` is None if it is not traced.
    """

    record: CopyRecord | None
    layers: list[int] = field(default_factory=list)
    call_s: float = 0.0
    status: str = "ok"


class LayerProbe(Probe):
    """Adds loads that open at their first layer's call and close when the operation ends.

    Ends that the digester cannot read (a class without a view) are left out: their operations still
    become events, with every tile skipped. Copies with a device end on a GPU are followed
    elsewhere, and are only judged here.
    """

    @property
    def errors(self) -> InternalErrors:
        """Counts failures of the tracer itself."""
        return self._errors

    @property
    def digests(self) -> bool:
        """Whether tiles are digested at all."""
        return self._settings.checksum is not Checksum.OFF

    def wants(self, pool: str, op: Op) -> bool:
        """Return whether copies of this kind are traced."""
        settings = self._settings
        return settings.traces(pool) and settings.traces_op(op)

    @property
    def bus(self) -> Bus:
        """Takes records of copies that are followed elsewhere."""
        return self._bus

    def booked(self, copy: Copy) -> CopyRecord:
        """Return a copy's initial record; called on the bus's thread once its pages are known."""
        return self._open(copy)

    def judged(self, record: CopyRecord) -> list[Event]:
        """Return a record's events."""
        return self._judge(record)

    def open(self, copy: Copy) -> OpenLoad:
        """Open a load of all layers that ``copy`` names.

        The layers that moved are recorded as they come.
        """
        begun = time.perf_counter()
        self._enforce()
        opened = OpenLoad(None)
        with self._errors.at("probe/before"):
            if self.enabled and self._traced(copy):
                opened.record = self._open(copy)
                self._take([opened.record], Point.SOURCE_BEFORE)
        self.overhead_s += time.perf_counter() - begun
        return opened

    def layer(self, load: OpenLoad, layer: int, call: Callable[[], None]) -> None:
        """Run ``call``, which delivers ``layer`` (the views' number), then digest what arrived."""
        started = time.perf_counter()
        try:
            call()
        except BaseException as error:
            load.status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            load.call_s += ended - started
            load.layers.append(layer)
            if load.record is not None and load.status == "ok":
                self._take([load.record], Point.DESTINATION, layer)
            self.overhead_s += time.perf_counter() - ended

    def close(self, load: OpenLoad) -> None:
        """Close the load: append its record, restricted to the layers that moved."""
        begun = time.perf_counter()
        if load.record is not None:
            with self._errors.at("probe/after"):
                if load.status == "ok":
                    self._take([load.record], Point.SOURCE_AFTER)
                self._join([load.record])
                self._append([_of_layers(load.record, load.layers)], load.call_s * 1e6, load.status)
        self.overhead_s += time.perf_counter() - begun

    def _take(self, records: Sequence[CopyRecord], point: Point, layer: int | None = None) -> None:
        readable = [record for record in records if _is_readable(record.copy)]
        super()._take(readable, point, layer)


def _is_readable(copy: Copy) -> bool:
    ends = (*copy.mirror.device.values(), *copy.mirror.host.values())
    return all(view.device == "cpu" for view in ends)


def _of_layers(record: CopyRecord, layers: list[int]) -> CopyRecord:
    """Return the record restricted to ``layers``."""
    if tuple(layers) == record.copy.layers:
        return record
    rows = [record.copy.layers.index(layer) for layer in layers]
    return replace(
        record,
        copy=replace(record.copy, layers=tuple(layers), model_layers=tuple(layers)),
        digests={key: digests[rows] for key, digests in record.digests.items()},
    )
