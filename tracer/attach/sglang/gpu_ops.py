"""One pool's part of an operation whose ends are on a GPU: enqueued now, read and judged later."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.copies import Given, Reading, read_call
from hicache_dbg.tracer.attach.sglang.gpu import Part
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool, Plan
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.ledger import Digests
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Point

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.whose import Request

__all__ = ["PATIENCE_S", "Booked", "DeviceOp"]

#: How long at most an operation waits to be judged while the host is in the middle of another: each
#: step of the bus's thread is one that the host's waits for the interpreter.
PATIENCE_S = 0.1


@dataclass(slots=True)
class Booked:
    """What the operations of one session's probe need once they are over.

    Args:
        history: knows the generations of host pages at their begin.
        busy: what the host is in the middle of; empty when the bus may take its time.
        open: a copy's record as the probe begins it.
        judge: the record's events.
        read: called with an operation and what it moved, when its indices can be read.
        lost: called with who has an operation's pages open if that will never be.
    """

    history: History
    busy: set[int]
    open: Callable[[Copy], CopyRecord]
    judge: Callable[[CopyRecord], Sequence[Event]]
    read: Callable[["DeviceOp", Reading, Given], None]
    lost: Callable[[Any], None]


class DeviceOp:
    """From the call on the host's thread to its events on the bus's.

    ``layers`` are those that came, in their order; ``opened`` is who has the copy's pages open,
    ``whom`` who asked for it.
    """

    __slots__ = (
        "_args",
        "_began_ns",
        "_kwargs",
        "_many",
        "_moment",
        "_pages",
        "_read",
        "_taken",
        "booked",
        "device",
        "duration_us",
        "finished",
        "host",
        "layers",
        "leave",
        "loads",
        "op_id",
        "opened",
        "owner",
        "plan",
        "pool",
        "size",
        "status",
        "time_ns",
        "whom",
        "work",
    )

    def __init__(  # noqa: PLR0917
        self,
        pool: DevicePool,
        plan: Plan,
        owner: Any,
        ends: tuple[torch.Tensor, torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        op_id: int,
        booked: Booked,
    ) -> None:
        """To be made on the copy's stream, before anything moves.

        Args:
            pool: what is known of the pool.
            plan: of the method that is called.
            owner: SGLang's pool.
            ends: the indices of the host and of the device.
            args: what the method is given.
            kwargs: the same.
            op_id: the operation's number.
            booked: what it needs once it is over.
        """
        self.pool, self.plan, self.owner, self.op_id, self.booked = pool, plan, owner, op_id, booked
        self.host, self.device = ends
        self._args, self._kwargs = args, kwargs
        self.loads = plan.op is Op.LOAD
        self.layers: Sequence[int] = () if self.loads else plan.all
        self.status, self.duration_us, self.time_ns = "ok", 0.0, 0
        self.opened: Any = None
        self.whom: tuple[Request, ...] = ()
        self.leave: tuple[Callable[[str, None], object], str] | None = None
        self.finished = self._read = False
        self._taken = 0
        self._pages: torch.Tensor | None = None
        self._many, self.work = plan.begin(owner, self.host, self.device)
        self.size = plan.layers * self._many * pool.page_bytes
        self._moment = booked.history.begin()
        self._began_ns = time.time_ns()

    @property
    def device_pool(self) -> Any:
        """SGLang's device pool, as the call named it."""
        return self.plan.argument("device_pool", self._args, self._kwargs)

    def digest(self) -> None:
        """Enqueue the digests of the layers that came, those that follow on each other at once."""
        if self._many:
            plan, ids = self.plan, self.device
            flat = ids.is_cuda and ids.dim() == 1 and ids.dtype is torch.int64
            if flat and self.pool.whole and self.layers is plan.all:
                step = ids.stride(0)
                first = ids.data_ptr() + 8 * step * plan.start
                ranges = plan.ranges(0 if self.loads else self.size)
                self.work.digest_whole(
                    self.pool.whole, ranges, first, step * plan.unit, plan.unit, self._many
                )
            else:
                pages = self._pages = plan.pages(ids, self.work.on)
                for run in (plan.every,) if self.layers is plan.all else _runs(self.layers):
                    self.work.digest(self.pool.views, run, pages, self._many, plan.unit)
            self._taken = len(self.layers)
        self.finished = True

    def query(self) -> bool:
        """Whether copies and digests are over; named as a device's event has it."""
        return self._read or self.work.ready()

    def drop(self) -> None:
        """Nobody will read this."""
        self._read = True
        self.booked.lost(self.opened)
        self.pool.lane.drop(self.work)
        self.booked.history.end(self._moment)

    # -- the bus's record -----------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether copies and digests are over, and the host is not in the middle of something."""
        if not self.work.ready():
            return False
        return not self.booked.busy or time.time_ns() - self.time_ns > PATIENCE_S * 1e9

    def events(self) -> Sequence[Event]:
        """The copy's event and its findings."""
        work, booked = self.work, self.booked
        self._read = True  # from here on the slot is another's
        try:
            words, host, device = work.lane.read(work, self.host, self.device)
            ended_ns, took_us = self._times()
        finally:
            work.lane.give_back(work.slot)
        try:
            given = self.plan.given(self.owner, host, device, self._args, self._kwargs, self.whom)
            _give_way()
            reading = read_call(self.pool.record, given, self.op_id)
            _give_way()
            booked.read(self, reading, given)
            record = booked.open(self._copy(reading.copy))
        finally:
            booked.history.end(self._moment)
        _give_way()
        self._fill(record, words.numpy().view(np.uint64))
        record.time_ns, record.duration_us = ended_ns, took_us
        record.status = self.status
        return booked.judge(record)

    def _times(self) -> tuple[int, float]:
        """When the operation was over, and how long the device took.

        The device's clock has no zero in common with the host's: the end is the first moment possible,
        for nothing began before the call, nor ended before all was enqueued. Of an operation whose
        begin or end was never marked there is the host's call alone.
        """
        took_us = self.work.device_us() if self.finished else None
        if took_us is None:
            return self.time_ns, self.duration_us
        return max(self.time_ns, self._began_ns + round(took_us * 1e3)), took_us

    def _copy(self, copy: Copy) -> Copy:
        pages, layers = copy.host_pages, tuple(self.layers)
        generations = self.booked.history.at(self.pool.record, pages, self._moment)
        return replace(copy, layers=layers, model_layers=layers, generations=generations)

    def _fill(self, record: CopyRecord, words: Digests) -> None:
        """Put the digests where the judge looks for them, or say why there are none."""
        copy, work, digests = record.copy, self.work, self.plan.digests
        if work.refused:
            record.skip = SkipReason(work.refused)
        elif record.skip is None and digests:
            if copy.spans is not None or self._many != len(copy.host_pages):
                record.skip = SkipReason.PARTIAL
            elif not self.finished or self._taken != len(self.layers):
                record.skip = SkipReason.UNWITNESSED
        if record.skip is None and digests:
            point = Point.SOURCE_BEFORE if copy.op is Op.BACKUP else Point.DESTINATION
            for component in self.pool.views:
                parts = [part for part in work.parts if part.component == component]
                rows = [_rows(words, part, len(copy.host_pages)) for part in parts]
                whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
                record.digests[point, component] = whole[:, record.digested]


def _runs(layers: Sequence[int]) -> Iterator[range]:
    """Layers that follow on each other, in the order in which they came."""
    first = 0
    for at in range(1, len(layers) + 1):
        if at == len(layers) or layers[at] != layers[at - 1] + 1:
            yield range(layers[first], layers[at - 1] + 1)
            first = at


def _give_way() -> None:
    """Let a thread of the host's go on that waits for the interpreter: it would wait for 5 ms."""
    time.sleep(0)


def _rows(words: Digests, part: Part, pages: int) -> Digests:
    layers = part.last - part.first
    return words[part.at : part.at + layers * pages].reshape(layers, pages)
