"""One pool's part of an operation whose device end is on a GPU: noted and enqueued now, judged later.

SGLang's thread creates a :class:`DeviceOp`, and enqueues its digests when the operation has been
submitted. Whatever can wait is left to the bus's thread, which gets the same object as a record.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.copies import read_call
from hicache_dbg.tracer.attach.sglang.frames import Frame
from hicache_dbg.tracer.attach.sglang.gpu import Part, Slot
from hicache_dbg.tracer.attach.sglang.gpu_plans import AtOnce, DevicePool, Plan
from hicache_dbg.tracer.digest.driver import check
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.probe import CopyRecord, Point

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopy

__all__ = ["DeviceOp"]

#: What the driver says of an event: CUDA_SUCCESS, CUDA_ERROR_NOT_READY.
_COME, _NOT_YET = 0, 600


class DeviceOp:
    """One pool's copies of one operation, from the call on SGLang's thread to its events.

    It is a :class:`~hicache_dbg.tracer.attach.sglang.gpu.Job` for the lane, a
    :class:`~hicache_dbg.tracer.attach.sglang.open_copies.Followed` for the books and a
    :class:`~hicache_dbg.tracer.bus.Record` for the bus.

    Args:
        plan: The plan of the method that was called.
        frame: The operation that this becomes a part of.
        owner: SGLang's pool.
        host: The host indices.
        device: The device indices.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.

    Attributes:
        layers: The layers copied so far, in order.
        stream: The stream of the copies.
        is_aside: Whether SGLang's own method temporarily replaces our wrapper.
    """

    # The compiled helper creates these as well, and reads them by the places of their slots.
    __slots__ = (
        *("args", "clock", "device", "frame", "handle", "host", "is_aside", "kwargs", "layers"),
        *("moment", "opened", "over_ns", "owner", "plan", "slot", "status", "stream"),
        *("_finished", "_keeps", "_many", "_mark", "_pages", "_read", "_start", "_taken"),
        *("_unit", "_way", "__weakref__"),
    )

    def __init__(  # noqa: PLR0917
        self,
        plan: Plan,
        frame: Frame,
        owner: Any,
        host: torch.Tensor,
        device: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if frame.alone:  # whoever called may write its indices afterwards
            host, device = host.clone(), device.clone()
        self.plan, self.frame, self.owner = plan, frame, owner
        self.host, self.device, self.args, self.kwargs = host, device, args, kwargs
        self.layers: Sequence[int] = plan.begins_with
        self.stream = plan.stream()
        self.moment = self.over_ns = 0
        self.status = "ok"
        self.opened: OpenCopy | None = None
        self.slot: Slot | None = None
        #: The event behind copies and digests, as the driver names it; 0 where it is not known.
        self.handle = 0
        #: The events of its begin and of its end.
        self.clock: tuple[Any, Any] = (None, None)
        self._mark: Any = None
        self._way: AtOnce | None = None
        self._pages: torch.Tensor | None = None
        self._many, self._start, self._unit, self._taken = 0, 0, 1, 0
        self.is_aside = self._finished = self._read = self._keeps = False
        if not plan.timed:
            self._mark = plan.lane.mark(self.stream)
        frame.on_device.append(self)

    # -- on SGLang's thread ---------------------------------------------------------------------

    def at_once(self) -> bool:
        """Enqueue the digests of the usual operation; return False if this is another.

        The usual operation has SGLang's events, and one launch a component digests it. This does what
        :meth:`Lane.conclude` does, in one function: between two operations of SGLang nothing of ours
        stays in a cache, and each function costs 2 us.
        """
        plan, frame, ids = self.plan, self.frame, self.device
        count, start, over = ids.numel(), frame.start, frame.over
        way, steps = plan.ways.get(count) or plan.way(self.owner, count), ids.stride()
        if (
            way is None
            or over is None
            or self.layers is not plan.all
            or self.host.numel() != count
            or len(steps) != 1
            or ids.dtype is not torch.int64
            or ids.get_device() != plan.ordinal
            or (way.during and start is None)
        ):
            return False
        first, unit, many, beside, during, words, launches, *_ = way
        lane, handle = plan.lane, over.cuda_event
        on, step = lane.sides[self.stream] if beside else self.stream, steps[0]
        where = ids.data_ptr() + 8 * step * first, step * unit, unit, many
        with lane.lock:
            slot = lane.slots.pop() if lane.slots else lane.slot(words)
            if slot.size < words:
                slot = lane.slot(words)
            self.slot = slot
            if on not in slot.streams:
                slot.used_on(on, lane.device)
            code = lane.wait(on, start.cuda_event if during else handle, 0) if beside else 0
            if code:
                check("cuStreamWaitEvent", code)
            for launch, bases, offset in launches:
                launch(on, many, bases, *where, slot.address + offset, many)
            code = lane.wait(on, handle, 0) if during else 0
            if code:
                check("cuStreamWaitEvent", code)
            if frame.timed:
                self.clock, self.handle = (start, over), handle
            else:
                self.clock, self.handle = (self._mark, slot.event), slot.handle
                lane.record(slot.handle, on)
            code = lane.raw_record(handle, on)
            if code:
                check("cuEventRecord", code)
        self._way = way
        return True

    def give_up(self) -> None:
        """Count as not digested. What was enqueued may still write into the slot: it is not reused."""
        self.slot, self.handle, self.clock = None, 0, (None, None)
        self._finished = False

    # -- as a job of the lane: every other operation ----------------------------------------------

    @property
    def loads(self) -> bool:
        """Whether it is a load."""
        return self.plan.loads

    @property
    def pool(self) -> DevicePool:
        """What is known of the pool."""
        return self.plan.device_pool

    def prepare(self) -> int:
        """Take a slot; return how many bytes are to be digested."""
        plan, pool, count = self.plan, self.pool, self.device.numel()
        if plan.digests and self.host.numel() == count:
            starts = plan.starts(self.owner, count)
            if starts is not None:
                self._start, self._unit = starts
                self._many = -(-(count - self._start) // self._unit)
        many = self._many
        slot = self.slot = pool.lane.slot(plan.layers * plan.components * many or 1)
        self.clock = self._mark, slot.event
        return plan.layers * many * pool.page_bytes

    def digest(self, on: int, *, during: bool) -> None:
        """Enqueue the digests of the layers that came, consecutive ones in one launch."""
        slot, many, ids = self.slot, self._many, self.device
        self._finished = True
        if not many or slot is None:
            return
        if on not in slot.streams:
            slot.used_on(on, self.pool.lane.device)
        plan, step = self.plan, ids.stride()
        if self.layers is not plan.all or not self._is_plain(step):
            self._by_runs(slot, on)
        else:
            slot.parts, offsets, slot.words = plan.parts(many)
            unit = self._unit
            where = ids.data_ptr() + 8 * step[0] * self._start, step[0] * unit, unit, many
            for (_, whole), offset in zip(self.pool.whole, offsets, strict=True):
                launch = whole.sparing if during else whole.every
                launch(on, many, whole.bases, *where, slot.address + offset, many)
        self._taken = len(self.layers)

    def _is_plain(self, strides: tuple[int, ...]) -> bool:
        """Return whether a launch of whole pages can read the indices where they are."""
        ids = self.device
        return (
            bool(self.pool.whole)
            and len(strides) == 1
            and ids.get_device() == self.plan.ordinal
            and ids.dtype is torch.int64
        )

    def _by_runs(self, slot: Slot, on: int) -> None:
        """Enqueue the digests of consecutive layers, by the digester's own call."""
        plan, unit, many = self.plan, self._unit, self._many
        pages = self._pages = plan.pages(self.device, self._start, unit, on)
        digest = self.pool.lane.digester.digest
        for run in (plan.every,) if self.layers is plan.all else _runs(self.layers):
            for component, view in self.pool.views.items():
                out = slot.view(slot.words, len(run), many)
                refused = digest(view, run, pages, out=out, unit=unit, stream=on)
                if refused is not None:
                    slot.refused = refused
                    return
                slot.parts.append(Part(component, run.start, run.stop, slot.words))
                slot.words += len(run) * many

    # -- for the books --------------------------------------------------------------------------

    @property
    def time_ns(self) -> int:
        """When the operation had been submitted."""
        return self.frame.ended_ns

    @property
    def whose(self) -> tuple[str, str]:
        """The pool's name and the operation's kind."""
        return self.plan.pool, self.plan.what

    def query(self) -> bool:
        """Return whether copies and digests are over; named as a device's event has it."""
        if self._read:
            return True
        if self.handle:
            code = self.pool.lane.query(self.handle)
            if code in {_COME, _NOT_YET}:
                return bool(code == _COME)
        end = self.clock[1]  # torch's own way, for a thread that has not used the device yet
        return end is None or bool(end.query())

    def over_before(self, other: "DeviceOp") -> bool:
        """Return whether the device was done with this before it began ``other``; True if unknown."""
        ended, began = self.clock[1], other.clock[0]
        known = self._finished and self.pool.lane is other.pool.lane
        if not known or ended is None or began is None:
            return True
        try:
            return bool(ended.elapsed_time(began) >= 0)
        except RuntimeError:  # one of them was never recorded
            return True

    def closed(self) -> None:
        """Let go of events of ours that tell when it was over."""
        if self._keeps:
            self._keeps = False
            self.pool.lane.give_back(self.slot, self._mark)

    def drop(self) -> None:
        """Forget it: nobody will read it."""
        self._read = True
        self.plan.booked.history.end(self.moment)

    # -- as a record, on the bus's thread ---------------------------------------------------------

    def ready(self) -> bool:
        """Return whether it is over, and the host is not in the middle of another operation."""
        return self.plan.booked.has_time(self.time_ns) and self.query()

    def events(self) -> Sequence[Event]:
        """Return the copy's event and its findings; none if it was dropped."""
        if self._read:
            return ()
        plan, frame, booked, lane = self.plan, self.frame, self.plan.booked, self.pool.lane
        self._read, self.over_ns = True, booked.clock()
        if self._way is not None:
            self._as_planned(self._way)
        slot = self.slot
        parts, refused = (slot.parts, slot.refused) if slot is not None else ([], "")
        try:
            ended_ns, took_us = self._times()  # before its events are given back
            words, host, device = self._fetched(slot)
            given = plan.given(self.owner, host, device, self.args, self.kwargs, frame.whom)
            layers = tuple(self.layers)
            reading = read_call(
                self.pool.record, given, frame.op_id, layers=layers, generations=self._generations
            )
            booked.read(self, reading, given)
            record = booked.open(reading.copy)
        finally:
            booked.history.end(self.moment)
        self._fill(record, words.numpy().view(np.uint64), parts, refused)
        record.time_ns, record.duration_us = ended_ns, took_us
        record.status = self.status if self.status != "ok" else frame.status
        events = booked.judge(record)
        booked.give_way()
        if not booked.busy:
            lane.sides.settle(self.stream)
        return events

    def _fetched(self, slot: Slot | None) -> Sequence[torch.Tensor]:
        """Return the digests and both ends' indices, on the CPU."""
        lane, timed = self.pool.lane, self.frame.timed
        try:
            return lane.read(slot, self.host, self.device)
        finally:
            self._keeps = not timed
            if timed:
                lane.give_back(slot, self._mark)

    def _as_planned(self, way: AtOnce) -> None:
        """Note what :meth:`at_once` enqueued."""
        slot = self.slot
        assert slot is not None  # noqa: S101 - the way takes one
        slot.parts, slot.words, slot.refused = way.parts, way.words, ""
        self._many, self._start, self._unit = way.many, way.start, way.unit
        self._taken, self._finished = len(self.layers), True

    def _times(self) -> tuple[int, float]:
        """Return when the operation was over, and how long the device took.

        The device's clock and the host's have no common zero: the end is the first moment possible,
        for nothing began before the call, nor ended before everything was enqueued. An operation whose
        begin or end was never marked has the times of the host's call.
        """
        began, ended = self.clock
        begun_ns = self.frame.began_ns
        if began is None or not self._finished:
            return self.time_ns, (self.time_ns - begun_ns) * 1e-3
        took_us = float(began.elapsed_time(ended)) * 1e3
        return max(self.time_ns, begun_ns + round(took_us * 1e3)), took_us

    def _generations(self, pages: Pages) -> Pages:
        """Return the generations of host pages as the operation began."""
        return self.plan.booked.history.at(self.pool.record, pages, self.moment)

    def _fill(
        self, record: CopyRecord, words: Digests, parts: Sequence[Part], refused: str
    ) -> None:
        """Put the digests where the judge looks for them, or say why there are none."""
        copy = record.copy
        if record.skip is None and self.plan.digests:
            record.skip = SkipReason(refused) if refused else self._missing(record)
            if record.skip is None:
                point = Point.SOURCE_BEFORE if copy.op is Op.BACKUP else Point.DESTINATION
                every = b"\0" not in record.digested.tobytes()
                for component in self.pool.views:
                    mine = [part for part in parts if part.component == component]
                    rows = [_rows(words, part, len(copy.host_pages)) for part in mine]
                    whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
                    record.digests[point, component] = whole if every else whole[:, record.digested]

    def _missing(self, record: CopyRecord) -> SkipReason | None:
        """Return why the record's pages have no digests; None where they have."""
        copy = record.copy
        if not self._finished:
            return SkipReason.UNWITNESSED
        if copy.spans is not None or self._many != len(copy.host_pages):
            return SkipReason.PARTIAL
        return SkipReason.UNWITNESSED if self._taken != len(self.layers) else None


def _runs(layers: Sequence[int]) -> Iterator[range]:
    """Yield consecutive layers, in the order in which they came."""
    first = 0
    for at in range(1, len(layers) + 1):
        if at == len(layers) or layers[at] != layers[at - 1] + 1:
            yield range(layers[first], layers[at - 1] + 1)
            first = at


def _rows(words: Digests, part: Part, pages: int) -> Digests:
    layers = part.last - part.first
    return words[part.at : part.at + layers * pages].reshape(layers, pages)
