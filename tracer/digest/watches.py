"""Watched operations on one CUDA device: their lanes, the roll-ups, and the bus's way to read them."""

import threading
import weakref
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.tracer.digest.lane import (
    HEAD,
    Lane,
    LaunchMaker,
    Plan,
    capacity_for,
    groups_of,
)
from hicache_dbg.tracer.digest.ring import Violation, ViolationRing
from hicache_dbg.tracer.digest.side import SideStream
from hicache_dbg.tracer.digest.watch import Seen, Wanted, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Watches"]

#: Lanes of one kind at most: so far may the bus lag behind.
MOST_LANES = 64
#: Operations whose violations wait to be asked for, at most.
_MOST_TAGS = 4096


class Watches:
    """Makes watches, from any thread; what they found is read on one, the bus's."""

    def __init__(self, digester: LaunchMaker) -> None:
        self._digester = digester
        self._made, self._bus = (torch.cuda.Stream(digester.device) for _ in range(2))
        with torch.cuda.stream(self._made):
            self._ring = ViolationRing(digester.device)
        self._made.synchronize()
        self._books: dict[int, _Book] = {}  # by identity of the mirror: asked for at every copy
        self._tags = count(1)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._found: dict[int, list[Violation]] = {}

    def watch(self, wanted: Wanted, after: int | None = None) -> Watch | None:
        """A watch of ``wanted``, begun; None while the bus lags so far that no lane is free.

        The source of a backup is whole, or will be after what the stream ``after`` (a raw handle)
        was given so far.
        """
        kind = self._book(wanted).kind(wanted, self._new)
        lane = kind.lane()
        if lane is None:
            return None
        tag = next(self._tags)
        side = self._side()
        told_on = side if after is None else after
        lane.fill(tag, wanted.pages, wanted.entries, wanted.keys, told_on)
        second = sum(map(len, lane.plan.groups[1:])) if wanted.loads else None
        read = partial(self._arrivals if wanted.loads else self._digests, lane, tag)
        watch = Watch(lane, side, second, read=read, give_back=partial(kind.free.append, lane))
        watch.begin(after)
        return watch

    def device_bytes(self) -> int:
        """Device memory of all roll-ups."""
        books = tuple(self._books.values())
        return sum(table.nbytes for book in books for table in book.rollups.values())

    def _book(self, wanted: Wanted) -> "_Book":
        book = self._books.get(id(wanted.mirror))
        if book is None:
            with self._lock:
                book = self._books.get(id(wanted.mirror))
                if book is None:
                    book = self._books[id(wanted.mirror)] = _Book()
                    weakref.finalize(wanted.mirror, self._books.pop, id(wanted.mirror), None)
        return book

    def _new(self, wanted: Wanted, book: "_Book") -> Plan:
        if wanted.component not in book.rollups:
            with torch.cuda.stream(self._made):
                table = torch.zeros(wanted.size, dtype=torch.int64, device=self._digester.device)
            self._made.synchronize()
            book.rollups[wanted.component] = table
            weakref.finalize(wanted.mirror, self._digester.forget, wanted.view)
        return Plan(
            view=wanted.view,
            groups=groups_of(wanted.layers, split=wanted.loads),
            capacity=capacity_for(len(wanted.pages)),
            compare=wanted.loads,
            rollups=book.rollups[wanted.component],
            digester=self._digester,
            ring=self._ring,
            stream=self._made,
        )

    def _side(self) -> int:
        """The raw handle of this thread's stream."""
        if not hasattr(self._local, "side"):
            self._local.side = SideStream(self._digester.device)
        side: SideStream = self._local.side
        return side.handle

    # -- on the bus's thread --------------------------------------------------------------------

    def _digests(self, lane: Lane, _: int) -> Seen:
        digests = self._read(lane.digests)[:, : lane.pages].view(np.uint64)
        return Seen(np.zeros(lane.pages, np.bool_), digests)

    def _arrivals(self, lane: Lane, tag: int) -> Seen:
        _, equal = self._read(lane.head[:HEAD]).tolist()
        layers, pages = len(lane.digests), lane.pages
        if equal == pages:
            return Seen(np.ones(pages, np.bool_), np.zeros((layers, pages), np.uint64))
        found = self._violations(tag)
        bad = {violation.page for violation in found}
        if equal + len(bad) < pages or len(found) < layers * len(bad):
            return self._digests(lane, tag)  # some are unknown there, or were lost from the ring
        confirmed, digests = np.ones(pages, np.bool_), np.zeros((layers, pages), np.uint64)
        confirmed[list(bad)] = False
        for violation in found:
            digests[violation.layer, violation.page] = violation.got
        return Seen(confirmed, digests)

    def _violations(self, tag: int) -> list[Violation]:
        with torch.cuda.stream(self._bus):
            self._ring.fetch()
        self._bus.synchronize()
        for violation in self._ring.take().violations:
            self._found.setdefault(violation.tag, []).append(violation)
        found = self._found.pop(tag, [])
        while len(self._found) > _MOST_TAGS:
            self._found.pop(next(iter(self._found)))
        return found

    def _read(self, tensor: torch.Tensor) -> npt.NDArray[np.int64]:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(self._bus):
            host.copy_(tensor, non_blocking=True)
        self._bus.synchronize()
        array: npt.NDArray[np.int64] = host.numpy()
        return array


class _Book:
    """What one mirror has on the device."""

    def __init__(self) -> None:
        self.rollups: dict[str, torch.Tensor] = {}
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._lock = threading.Lock()

    def kind(self, wanted: Wanted, make: "Callable[[Wanted, _Book], Plan]") -> "_Kind":
        """The operations like ``wanted``: the same layers, the same room."""
        capacity = capacity_for(len(wanted.pages))
        key = (wanted.component, wanted.loads, wanted.layers, capacity)
        kind = self._kinds.get(key)
        if kind is None:
            with self._lock:
                if key not in self._kinds:
                    self._kinds[key] = _Kind(make(wanted, self))
                kind = self._kinds[key]
        return kind


class _Kind:
    """The lanes of one plan: those that are free, and how many were made."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.free: deque[Lane] = deque()
        self._made = 0

    def lane(self) -> Lane | None:
        """A free lane, made if need be; None if there are enough and all are under way."""
        try:
            return self.free.popleft()
        except IndexError:
            if self._made >= MOST_LANES:
                return None
            self._made += 1
            return Lane(self._plan)
