"""One pool's part of an operation whose ends are on a GPU: enqueued now, read and judged later."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.copies import Given, Reading, read_call
from hicache_dbg.tracer.attach.sglang.gpu import IN_LINE_BYTES, Lane, Part, Work
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.paths import page_starts
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord
from hicache_dbg.tracer.events import Event, Op, SkipReason
from hicache_dbg.tracer.ledger import Digests
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.probe import CopyRecord, Point
from hicache_dbg.tracer.view import View

__all__ = ["Booked", "DeviceOp", "DevicePool"]

#: From so many bytes on a load is digested in two parts, so that little is left behind its last
#: layer: this part of the layers, then the rest.
_TWO_PARTS_BYTES, _FIRST_PART = 4 * IN_LINE_BYTES, 5 / 6


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool whose device end is on a GPU, ready to be digested there."""

    record: PoolRecord
    lane: Lane
    views: Mapping[str, View]
    #: Bytes of one page of one layer, all components.
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Booked:
    """What an operation's record needs once it is over.

    Args:
        history: knows the generations of host pages at its begin.
        open: a copy's record as the probe begins it.
        judge: the record's events.
        read: called with what the call moved, when its indices can be read.
    """

    history: History
    open: Callable[[Copy], CopyRecord]
    judge: Callable[[CopyRecord], Sequence[Event]]
    read: Callable[[Reading, Given, int], None]


@dataclass(slots=True)
class DeviceOp:
    """From the call on the host's thread to its events on the bus's.

    Args:
        pool: the pool that is copied.
        given: what its method was called with.
        op_id: the operation's number.
        booked: what its record needs.
        last: the layer after which a load is over.
        digests: whether tiles are digested at all.
        alone: the call is no part of a submit: whoever called may write its indices afterwards.
        leave: called when a load is over.
    """

    pool: DevicePool
    given: Given
    op_id: int
    booked: Booked
    last: int
    digests: bool
    alone: bool = False
    leave: Callable[[], object] = lambda: None
    layers: list[int] = field(default_factory=list)
    #: The layers behind which a load's digests are enqueued.
    stops: set[int] = field(default_factory=set)
    status: str = "ok"
    duration_us: float = 0.0
    time_ns: int = 0
    finished: bool = False
    _moment: int = 0
    _begun_ns: int = 0
    _work: Work | None = None
    _pages: torch.Tensor | None = None
    _unit: int = 1
    _due: dict[int, int] = field(default_factory=dict)
    _taken: int = 0  # how many of the layers that came are digested

    def begin(self) -> None:
        """On the copy's stream, before anything moves."""
        self._moment = self.booked.history.begin()
        given, lane = self.given, self.pool.lane
        if self.alone:
            host, device = given.host_indices.clone(), given.device_indices.clone()
            self.given = given = replace(given, host_indices=host, device_indices=device)
        record = self.pool.record
        count = given.device_indices.numel()
        assert record.kind is not None  # noqa: S101 - a pool without a kind has no views
        starts = page_starts(record.kind.rules[given.method], given.pool, record.geometry, count)
        layers, size = record.mirror.layers, 0
        if starts is not None and self.digests and given.host_indices.numel() == count:
            start, self._unit = starts
            ids = given.device_indices
            self._pages = (ids if ids.dim() == 1 else ids.reshape(-1))[start :: self._unit]
            if self._pages.device.type == "cpu":
                self._pages = self._pages.contiguous().to(lane.device)
            size = layers * len(self._pages) * self.pool.page_bytes
        words = layers * len(self.pool.views) * (0 if self._pages is None else len(self._pages))
        self._begun_ns = time.time_ns()
        self._work = lane.begin(max(1, words), size)
        if given.op is Op.BACKUP:
            self.layers.extend(range(layers))
            self._work.follow()
            if not self._work.beside:
                self._take()
        else:
            self.stops = {self.last}
            if size > _TWO_PARTS_BYTES:
                self.stops.add(int(self.last * _FIRST_PART))
            assert record.geometry is not None  # noqa: S101 - nor one without geometry
            self._due = record.geometry.positions.copy()

    def delivered(self, layer: int) -> None:
        """A load's layer has come: on the copy's stream, behind its bytes.

        The last one's digests are joined here, before SGLang opens its gate. In 0.5.13 that gate is the
        event by which the operation is over and its pages may be given away: behind it the digests
        would be of anybody's bytes. Later versions record an event of their own behind the gate; there
        it costs the last layer's reader the tail, and keeps it from writing what is not digested yet.
        """
        self.layers.append(layer)
        if len(self.layers) == 1:  # from here on the layers between are only counted
            self._due = {
                number: due
                for number, due in self._due.items()
                if layer < due < self.last and due not in self.stops
            }
        late = self.finished  # a draft's, that rides behind the last layer of its target
        if (late or layer in self.stops) and self._work is not None:
            self._work.follow()
            self._take()
        if late or layer == self.last:
            self._end()

    def counts(self, host: object, device: object, number: int) -> bool:
        """Whether this call brings a layer of which nothing is to be done but to count it as come.

        ``number`` is the layer as the pool's method is given it.
        """
        given = self.given
        if host is not given.host_indices or device is not given.device_indices:
            return False
        layer = self._due.pop(number, None)
        if layer is None:
            return False
        self.layers.append(layer)
        return True

    def finish(self) -> None:
        """What is in the copy's stream from now on comes after the digests.

        Those of a backup that run beside it are enqueued only now: programs that are enqueued first
        take the whole device first, and the copy's own would wait for them.
        """
        if not self.finished:
            if self.given.op is Op.BACKUP:
                self._take()
            self._end()

    def _end(self) -> None:
        if self._work is not None:
            self._work.join()
            self._work.mark()
            self.finished = True

    def drop(self) -> None:
        """Nobody will read this."""
        if self._work is not None:
            self.pool.lane.give_back(self._work.slot, idle=False)
            self.booked.history.end(self._moment)
            self._work = None

    # -- the bus's record -----------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether copies and digests are over."""
        return self._work is None or self._work.ready()

    def events(self) -> Sequence[Event]:
        """The copy's event and its findings."""
        work = self._work
        if work is None:
            return ()
        try:
            ends = (self.given.host_indices, self.given.device_indices)
            words, host, device = self.pool.lane.read(work, *ends)
            ended_ns, took_us = self._times(work)
        finally:
            self.pool.lane.give_back(work.slot, idle=True)
            self._work = None
        try:
            given = replace(self.given, host_indices=host, device_indices=device)
            _give_way()
            reading = read_call(self.pool.record, given, self.op_id)
            _give_way()
            self.booked.read(reading, given, self.op_id)
            record = self.booked.open(self._copy(reading.copy))
        finally:
            self.booked.history.end(self._moment)
        _give_way()
        self._fill(record, work, words.numpy().view(np.uint64))
        record.time_ns, record.duration_us = ended_ns, took_us
        record.status = self.status
        return self.booked.judge(record)

    def _times(self, work: Work) -> tuple[int, float]:
        """When the operation was over, and how long the device took.

        The device's clock has no zero in common with the host's: the end is the first moment possible,
        for nothing began before the call, nor ended before all was enqueued. Of an operation whose
        end was never marked there is the host's call alone.
        """
        if not self.finished:
            return self.time_ns, self.duration_us
        took_us = work.device_us()
        return max(self.time_ns, self._begun_ns + round(took_us * 1e3)), took_us

    def _copy(self, copy: Copy) -> Copy:
        pages, layers = copy.host_pages, tuple(self.layers)
        generations = self.booked.history.at(self.pool.record, pages, self._moment)
        return replace(copy, layers=layers, model_layers=layers, generations=generations)

    def _fill(self, record: CopyRecord, work: Work, words: Digests) -> None:
        """Put the digests where the judge looks for them, or say why there are none."""
        copy = record.copy
        if work.refused:
            record.skip = SkipReason(work.refused)
        elif record.skip is None and self.digests:
            pages = 0 if self._pages is None else len(self._pages)
            if copy.spans is not None or pages != len(copy.host_pages):
                record.skip = SkipReason.PARTIAL
            elif not self.finished or self._taken != len(self.layers):
                record.skip = SkipReason.UNWITNESSED
        if record.skip is None and self.digests:
            point = Point.SOURCE_BEFORE if copy.op is Op.BACKUP else Point.DESTINATION
            for component in self.pool.views:
                parts = [part for part in work.parts if part.component == component]
                rows = np.concatenate([_rows(words, part, len(copy.host_pages)) for part in parts])
                record.digests[point, component] = rows[:, record.digested]

    def _take(self) -> None:
        """Digest the layers that came and are not digested yet, those that follow on each other at once."""
        work, pages, layers = self._work, self._pages, self.layers[self._taken :]
        if work is None or pages is None:
            return
        for run in _runs(layers):
            work.digest(self.pool.views, run, pages, self._unit)
        self._taken += len(layers)


def _runs(layers: list[int]) -> Iterator[range]:
    """Layers that follow on each other, in the order in which they came."""
    if layers and layers == list(range(layers[0], layers[0] + len(layers))):
        yield range(layers[0], layers[0] + len(layers))  # nearly always
        return
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
