"""One pool's part of an operation whose ends are on a GPU: enqueued now, read and judged later."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.copies import Given, Reading, read_call
from hicache_dbg.tracer.attach.sglang.gpu import A_LAUNCH_BYTES, Part, Slot
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.gpu_plans import Plan
from hicache_dbg.tracer.digest.driver import check
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Point

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.open_copies import Followed, OpenCopy
    from hicache_dbg.tracer.attach.sglang.whose import Request

__all__ = ["PATIENCE_S", "Booked", "DeviceOp"]

#: How long at most an operation waits to be judged while the host is in the middle of another: each
#: step of the bus's thread is one that the host's waits for the interpreter.
PATIENCE_S = 0.25
#: What the driver says of an event: CUDA_SUCCESS, CUDA_ERROR_NOT_READY.
_COME, _NOT_YET = 0, 600
#: So long the bus's thread keeps the interpreter for itself at most, give or take an operation. Who waits
#: for it would otherwise wait for 5 ms; to sleep after each operation takes as long as to judge one.
HOLD_S = 0.0003


@dataclass(slots=True)
class Booked:
    """What the operations of one session's probe need once they are over.

    Args:
        history: knows the generations of host pages at their begin.
        busy: what the host is in the middle of; empty when the bus may take its time.
        open: a copy's record as the probe begins it.
        judge: the record's events.
        read: called with an operation and what it moved, when its indices can be read.
        lost: called with an operation if that will never be.
    """

    history: History
    busy: set[int]
    open: Callable[[Copy], CopyRecord]
    judge: Callable[[CopyRecord], Sequence[Event]]
    read: Callable[[Any, Reading, Given], None]
    lost: Callable[[Any], None]
    _gave_way: float = field(default=0.0, init=False)

    def give_way(self) -> None:
        """Now and then, let a thread of the host's go on that waits for the interpreter."""
        if time.thread_time() - self._gave_way > HOLD_S:  # what the bus's thread waited, nobody did
            time.sleep(0)
            self._gave_way = time.thread_time()


class DeviceOp:
    """From the call on the host's thread to its events on the bus's.

    ``layers`` are those that came, in their order; ``whom`` asked for it, ``stream`` is the copies'.
    ``slot`` and ``clock`` are as a :class:`~hicache_dbg.tracer.attach.sglang.gpu.Job` has them, ``before``
    and ``opened`` as one that :class:`~hicache_dbg.tracer.attach.sglang.open_copies.OpenCopies` follows.
    """

    # What is as here of most operations is set for the others alone.
    status, thread = "ok", ""
    time_ns = 0
    whom: "tuple[Request, ...]" = ()
    leave: tuple[Callable[[str, None], object], str] | None = None
    opened: "OpenCopy | None" = None
    before: "Sequence[Followed | OpenCopy]" = ()
    slot: Slot | None = None
    #: Of the event behind copies and digests, where it is known.
    handle = 0
    _pages: torch.Tensor | None = None
    _many, _start, _unit, _taken, _size = 0, 0, 1, 0, 0
    _finished = _read = False

    def __init__(  # noqa: PLR0917
        self,
        plan: Plan,
        owner: Any,
        host: torch.Tensor,
        device: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        op_id: int,
    ) -> None:
        """To be made on the copy's stream, before anything moves.

        Args:
            plan: of the method that is called.
            owner: SGLang's pool.
            host: the indices of the host.
            device: those of the device.
            args: what the method is given.
            kwargs: the same.
            op_id: the operation's number.
        """
        self.plan, self.owner, self.op_id, self.host, self.device = plan, owner, op_id, host, device
        self.args, self.kwargs = args, kwargs
        self.pool, self.booked, self.loads = plan.device_pool, plan.booked, plan.loads
        self.layers: Sequence[int] = () if plan.loads else plan.all
        self.stream = plan.stream()
        self._mark = None if plan.timed else self.pool.lane.mark(self.stream)
        self.clock: tuple[Any, Any] = (self._mark, None)
        history = plan.booked.history
        self._moment = moment = history.now
        history.begun(moment)
        self._began_ns = time.time_ns()

    def at_once(self, start: Any, over: Any, *, timed: bool) -> bool:
        """Everything that enqueues the usual operation, in one go; False where it is another.

        The usual one has SGLang's event of its end, ``over``, and takes one launch a component behind
        its copies. It does then what :meth:`Lane.conclude` does, in a third of its time: that is twelve
        functions, none of which is in a cache between two of SGLang's operations.
        """
        plan, ids, lane = self.plan, self.device, self.pool.lane
        count, handle = ids.numel(), getattr(over, "cuda_event", 0)
        way = plan.ways.get(count) or plan.way(self.owner, count)
        if (
            way is None
            or not handle
            or self.layers is not plan.all
            or self.host.numel() != count
            or ids.dim() != 1
            or ids.dtype is not torch.int64
            or ids.get_device() != plan.ordinal
        ):
            return False
        first, unit, many, beside, words, parts, launches = way
        on, step = lane.sides[self.stream] if beside else self.stream, ids.stride(0)
        with lane.lock:
            slot = lane.slots.popleft() if lane.slots else lane.slot(words)
            if slot.size < words:
                slot = lane.slot(words)
            self.slot, slot.parts, slot.words, slot.refused = slot, parts, words, ""
            if on not in slot.streams:
                slot.used_on(on, lane.device)
            code = lane.wait(on, handle, 0) if beside else 0
            if code:
                check("cuStreamWaitEvent", code)
            address, at = slot.address, ids.data_ptr() + 8 * step * first
            for every, bases, offset in launches:
                every(on, many, bases, at, step * unit, unit, many, address + offset, many)
            if timed:
                self.clock, self.handle = (start, over), handle
            else:
                self.clock, self.handle = (self._mark, slot.event), slot.handle
                lane.record(slot.handle, on)
            code = lane.raw_record(handle, on)
            if code:
                check("cuEventRecord", code)
        self._many, self._start, self._unit, self._taken = many, first, unit, len(self.layers)
        self._finished = True
        return True

    def prepare(self) -> int:
        """Take a slot; how many bytes are to be digested."""
        plan, pool, count = self.plan, self.pool, self.device.numel()
        if plan.digests and self.host.numel() == count:
            starts = plan.starts(self.owner, count)
            if starts is not None:
                self._start, self._unit = starts
                self._many = -(-(count - self._start) // self._unit)
        many = self._many
        slot = self.slot = pool.lane.slot(plan.layers * plan.components * many or 1)
        self.clock = self._mark, slot.event
        self._size = plan.layers * many * pool.page_bytes
        return self._size

    def digest(self, on: int) -> None:
        """Enqueue the digests of the layers that came, those that follow on each other at once."""
        slot, many, ids = self.slot, self._many, self.device
        self._finished = True
        if not many or slot is None:
            return
        if on not in slot.streams:
            slot.used_on(on, self.pool.lane.device)
        plan, step = self.plan, ids.stride()
        if self.layers is not plan.all or not self._is_plain(step):
            self._by_runs(slot, on)
        elif self.loads or self._size <= A_LAUNCH_BYTES:
            slot.parts, offsets, slot.words = plan.parts(many)
            unit = self._unit
            where = ids.data_ptr() + 8 * step[0] * self._start, step[0] * unit, unit, many
            for (_, launch), offset in zip(self.pool.whole, offsets, strict=True):
                launch.every(on, many, launch.bases, *where, slot.address + offset, many)
        else:
            self._in_parts(slot, on)
        self._taken = len(self.layers)

    def _is_plain(self, strides: tuple[int, ...]) -> bool:
        """Whether a launch of whole pages can read the indices where they are."""
        ids = self.device
        return (
            bool(self.pool.whole)
            and len(strides) == 1
            and ids.get_device() == self.plan.ordinal
            and ids.dtype is torch.int64
        )

    def _in_parts(self, slot: Slot, on: int) -> None:
        """A large backup: a few layers a launch."""
        ids, unit, many = self.device, self._unit, self._many
        step = ids.stride(0)
        where = ids.data_ptr() + 8 * step * self._start, step * unit, unit, many
        for component, launch in self.pool.whole:
            for some in self.plan.ranges(self._size):
                launch.some(some, on, *where, slot.address + 8 * slot.words)
            slot.parts.append(Part(component, 0, launch.rows, slot.words))
            slot.words += launch.rows * many

    def _by_runs(self, slot: Slot, on: int) -> None:
        """Layers that follow on each other, by the digester's own call."""
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

    @property
    def whose(self) -> tuple[str, str]:
        """The pool's name and the operation's kind."""
        return self.plan.pool, self.plan.what

    def query(self) -> bool:
        """Whether copies and digests are over; named as a device's event has it."""
        if self._read:
            return True
        if self.handle:
            code = self.pool.lane.query(self.handle)
            if code in {_COME, _NOT_YET}:
                return bool(code == _COME)
        end = self.clock[1]  # torch's own way, for a thread that has not used the device yet
        return end is None or bool(end.query())

    def drop(self) -> None:
        """Nobody will read this."""
        self._read = True
        self.booked.lost(self)
        self.booked.history.end(self._moment)

    # -- the bus's record -----------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether copies and digests are over, and the host is not in the middle of something."""
        if not self.query():
            return False
        return not self.booked.busy or time.time_ns() - self.time_ns > PATIENCE_S * 1e9

    def events(self) -> Sequence[Event]:
        """The copy's event and its findings."""
        slot, booked, lane = self.slot, self.booked, self.pool.lane
        self._read = True  # from here on the slot is another's
        try:
            words, host, device = lane.read(slot, self.host, self.device)
            ended_ns, took_us = self._times()
        finally:
            lane.give_back(slot, self._mark)
        parts, refused = (slot.parts, slot.refused) if slot is not None else ([], "")
        try:
            given = self.plan.given(self.owner, host, device, self.args, self.kwargs, self.whom)
            layers = tuple(self.layers)
            reading = read_call(
                self.pool.record, given, self.op_id, layers=layers, generations=self._generations
            )
            booked.read(self, reading, given)
            record = booked.open(reading.copy)
        finally:
            booked.history.end(self._moment)
        self._fill(record, words.numpy().view(np.uint64), parts, refused)
        record.time_ns, record.duration_us = ended_ns, took_us
        record.status = self.status
        events = booked.judge(record)
        booked.give_way()
        if not booked.busy:
            lane.sides.settle(self.stream)
        return events

    def _times(self) -> tuple[int, float]:
        """When the operation was over, and how long the device took.

        The device's clock has no zero in common with the host's: the end is the first moment possible,
        for nothing began before the call, nor ended before all was enqueued. Of an operation whose
        begin or end was never marked there is the host's call alone.
        """
        began, ended = self.clock
        if began is None or not self._finished:
            return self.time_ns, (self.time_ns - self._began_ns) * 1e-3
        took_us = float(began.elapsed_time(ended)) * 1e3
        return max(self.time_ns, self._began_ns + round(took_us * 1e3)), took_us

    def _generations(self, pages: Pages) -> Pages:
        """Those of host pages as the operation began."""
        return self.booked.history.at(self.pool.record, pages, self._moment)

    def _fill(
        self, record: CopyRecord, words: Digests, parts: Sequence[Part], refused: str
    ) -> None:
        """Put the digests where the judge looks for them, or say why there are none."""
        copy, digests = record.copy, self.plan.digests
        if refused:
            record.skip = SkipReason(refused)
        elif record.skip is None and digests:
            if not self._finished:
                record.skip = SkipReason.UNWITNESSED
            elif copy.spans is not None or self._many != len(copy.host_pages):
                record.skip = SkipReason.PARTIAL
            elif self._taken != len(self.layers):
                record.skip = SkipReason.UNWITNESSED
        if record.skip is None and digests:
            point = Point.SOURCE_BEFORE if copy.op is Op.BACKUP else Point.DESTINATION
            for component in self.pool.views:
                mine = [part for part in parts if part.component == component]
                rows = [_rows(words, part, len(copy.host_pages)) for part in mine]
                whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
                every = b"\0" not in record.digested.tobytes()
                record.digests[point, component] = whole if every else whole[:, record.digested]


def _runs(layers: Sequence[int]) -> Iterator[range]:
    """Layers that follow on each other, in the order in which they came."""
    first = 0
    for at in range(1, len(layers) + 1):
        if at == len(layers) or layers[at] != layers[at - 1] + 1:
            yield range(layers[first], layers[at - 1] + 1)
            first = at


def _rows(words: Digests, part: Part, pages: int) -> Digests:
    layers = part.last - part.first
    return words[part.at : part.at + layers * pages].reshape(layers, pages)
