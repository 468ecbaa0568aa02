"""A probe for loads that come as one call a layer, with nobody to say beforehand which layers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Point, Probe

__all__ = ["LayerProbe", "OpenLoad"]


@dataclass(slots=True)
class OpenLoad:
    """A load of one pool of which some layers were delivered.

    ``record`` and ``device`` are None if it is not traced; one of them is otherwise, by where the
    pool's device end is.
    """

    record: CopyRecord | None
    layers: list[int] = field(default_factory=list)
    call_s: float = 0.0
    status: str = "ok"
    device: DeviceOp | None = None


class LayerProbe(Probe):
    """Adds loads that open at their first layer's call and close when the operation ends.

    Ends that the digester cannot read (a class without a view) are left out: their operations are
    events all the same, with every tile skipped. Where the device end is on a GPU, digests are
    enqueued and everything else is done on the bus's thread.
    """

    def observe(
        self, copies: Callable[[], Sequence[Copy | DeviceOp]], call: Callable[[], None]
    ) -> None:
        """As the base, also for operations on a GPU."""
        if not self.enabled:
            call()
            return
        made: list[Copy | DeviceOp] = []
        with self._errors.at("probe/before"):
            made.extend(copies())
        ops = [one for one in made if isinstance(one, DeviceOp) and self._wants(one)]
        if ops:
            self._beside(ops[0], call)
        else:
            super().observe(lambda: [one for one in made if isinstance(one, Copy)], call)

    def booked(self, copy: Copy) -> CopyRecord:
        """A copy's record as it begins; asked for on the bus's thread once its pages are known."""
        return self._open(copy)

    def judged(self, record: CopyRecord) -> list[Event]:
        """A record's events."""
        return self._judge(record)

    def begin(self, op: DeviceOp) -> OpenLoad:
        """Begin a load on a GPU, as :meth:`open` does elsewhere."""
        begun = time.perf_counter()
        self._enforce()
        opened = OpenLoad(None)
        if self.enabled and self._wants(op):
            with self._errors.at("digest/device"):
                op.begin()
                opened = OpenLoad(None, op.layers, device=op)
        self.overhead_s += time.perf_counter() - begun
        return opened

    def open(self, copy: Copy) -> OpenLoad:
        """Begin a load of all layers that ``copy`` names; which were moved is seen as they come."""
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
        if load.device is not None:
            self._layer_beside(load, load.device, layer, call)
            return
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
        """The operation is over: append its record, of the layers that were moved."""
        begun = time.perf_counter()
        if load.device is not None:
            self._over(load.device, load.call_s * 1e6, load.status)
            load.device.leave()
        if load.record is not None:
            with self._errors.at("probe/after"):
                if load.status == "ok":
                    self._take([load.record], Point.SOURCE_AFTER)
                self._join([load.record])
                self._append([_of_layers(load.record, load.layers)], load.call_s * 1e6, load.status)
        self.overhead_s += time.perf_counter() - begun

    def _wants(self, op: DeviceOp) -> bool:
        settings = self._settings
        return settings.traces(op.pool.record.mirror.pool) and any(
            fnmatchcase(op.given.op, glob) for glob in settings.ops
        )

    def _beside(self, op: DeviceOp, call: Callable[[], None]) -> None:
        begun = time.perf_counter()
        self._enforce()
        with self._errors.at("digest/device"):
            op.begin()
        started, status = time.perf_counter(), "ok"
        try:
            call()
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            with self._errors.at("digest/device"):
                op.finish()
            self._over(op, (ended - started) * 1e6, status)
            self.overhead_s += time.perf_counter() - ended + started - begun

    def _layer_beside(
        self, load: OpenLoad, op: DeviceOp, layer: int, call: Callable[[], None]
    ) -> None:
        started = time.perf_counter()
        try:
            call()
        except BaseException as error:
            load.status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            load.call_s += ended - started
            if load.status == "ok":
                with self._errors.at("digest/device"):
                    op.delivered(layer)
            self.overhead_s += time.perf_counter() - ended

    def _over(self, op: DeviceOp, duration_us: float, status: str) -> None:
        """Hand the operation to the bus."""
        op.time_ns, op.duration_us, op.status = time.time_ns(), duration_us, status
        if not self._bus.push(op):
            op.drop()

    def _take(self, records: list[CopyRecord], point: Point, layer: int | None = None) -> None:
        readable = [record for record in records if _is_readable(record.copy)]
        super()._take(readable, point, layer)


def _is_readable(copy: Copy) -> bool:
    ends = (*copy.mirror.device.values(), *copy.mirror.host.values())
    return all(view.device == "cpu" for view in ends)


def _of_layers(record: CopyRecord, layers: list[int]) -> CopyRecord:
    """The same record, cut down to ``layers``."""
    if tuple(layers) == record.copy.layers:
        return record
    rows = [record.copy.layers.index(layer) for layer in layers]
    return replace(
        record,
        copy=replace(record.copy, layers=tuple(layers), model_layers=tuple(layers)),
        digests={key: digests[rows] for key, digests in record.digests.items()},
    )
