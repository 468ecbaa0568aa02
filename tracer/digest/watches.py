"""Watched operations on one CUDA device: their lanes, their roll-ups, and how the bus reads them."""

import threading
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.tracer.digest.apart import apart_stream
from hicache_dbg.tracer.digest.lane import (
    IN_LINE_BYTES,
    Lane,
    LaunchMaker,
    Plan,
    capacity_for,
    groups_of,
)
from hicache_dbg.tracer.digest.watch import Wanted, Watch

__all__ = ["Watches"]

#: The most lanes of one kind, and so how far the bus may lag behind.
MOST_LANES = 64
#: The most kinds of a mirror that are looked up by the identity of their layers.
_MOST_QUICK = 64


class Watches:
    """Makes watches, from any thread. Their results are read on the bus's thread alone."""

    def __init__(self, digester: LaunchMaker) -> None:
        self._digester = digester
        self._bus = torch.cuda.Stream(digester.device)
        self._home = torch.empty(0, dtype=torch.int64, device="cpu", pin_memory=True)
        self._books: dict[int, _Book] = {}  # by identity of the mirror: looked up at every copy
        self._lock = threading.Lock()
        #: The raw handle of the stream that digests operations concurrently with their copies.
        self._side = apart_stream(digester.device) or torch.cuda.Stream(digester.device).cuda_stream

    def watch(self, wanted: Wanted) -> Watch | None:
        """Return a watch of ``wanted``, or None while the bus lags so far behind that no lane is free."""
        lane = self._kind(wanted).lane()
        if lane is None:
            return None
        lane.take(wanted)
        return Watch(lane, self._side, loads=wanted.loads)

    def device_bytes(self) -> int:
        """Return how much device memory the roll-ups take."""
        books = tuple(self._books.values())
        return sum(table.nbytes for book in books for table in book.rollups.values())

    def _kind(self, wanted: Wanted) -> "_Kind":
        """Return the kind of ``wanted``: operations of the same layers and the same capacity."""
        mirror, component, _, loads, layers, pages, _, _, _, _ = wanted
        book = self._books.get(id(mirror)) or self._book(mirror)
        capacity = capacity_for(len(pages))
        # By identity first: comparing the layers would take longer than everything else here.
        quick = component, loads, capacity, id(layers)
        known = book.quick.get(quick)
        if known is not None and known[0] is layers:
            return known[1]
        key = _Key(component, loads, capacity, layers)
        kind = book.kinds.get(key) or self._new(book, key, wanted)
        if len(book.quick) >= _MOST_QUICK:
            book.quick.clear()
        book.quick[quick] = layers, kind
        return kind

    def _book(self, mirror: object) -> "_Book":
        with self._lock:
            book = self._books.get(id(mirror))
            if book is None:
                book = self._books[id(mirror)] = _Book()
                weakref.finalize(mirror, self._books.pop, id(mirror), None)
            return book

    def _new(self, book: "_Book", key: "_Key", wanted: Wanted) -> "_Kind":
        with book.lock:
            if key not in book.kinds:
                book.kinds[key] = _Kind(self._plan(book, key, wanted))
            return book.kinds[key]

    def _plan(self, book: "_Book", key: "_Key", wanted: Wanted) -> Plan:
        if key.component not in book.rollups:
            with torch.cuda.stream(self._bus):
                table = torch.zeros(wanted.size, dtype=torch.int64, device=self._digester.device)
            self._bus.synchronize()
            book.rollups[key.component] = table
        size = wanted.view.tile_bytes() * len(key.layers) * key.capacity
        return Plan(
            view=wanted.view,
            groups=groups_of(key.layers, split=size > IN_LINE_BYTES),
            capacity=key.capacity,
            compare=key.loads,
            rollups=book.rollups[key.component],
            digester=self._digester,
            stream=self._bus,
            read=self._read,
        )

    def _read(self, words: torch.Tensor, columns: int) -> npt.NDArray[np.int64]:
        """Read the first ``columns`` of ``words`` from the device; called on the bus's thread."""
        if self._home.numel() < words.numel():
            self._home = torch.empty(
                words.numel(), dtype=torch.int64, device="cpu", pin_memory=True
            )
        home = self._home[: words.numel()].view(words.shape)
        self._digester.send(home.data_ptr(), words.data_ptr(), words.numel(), self._bus.cuda_stream)
        self._bus.synchronize()
        array: npt.NDArray[np.int64] = home.numpy()[:, :columns].copy()
        return array


class _Key(NamedTuple):
    """What operations that share lanes have in common."""

    component: str
    loads: bool
    capacity: int
    layers: tuple[int, ...]


class _Book:
    """One mirror's state on the device."""

    def __init__(self) -> None:
        self.rollups: dict[str, torch.Tensor] = {}
        self.kinds: dict[_Key, _Kind] = {}
        self.quick: dict[tuple[str, bool, int, int], tuple[tuple[int, ...], _Kind]] = {}
        self.lock = threading.Lock()


class _Kind:
    """One plan's lanes: the free ones, and how many exist."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made = 0

    def lane(self) -> Lane | None:
        """Return a free lane, creating one if needed; None if the limit is reached and all are in use."""
        try:
            return self._plan.free.popleft()
        except IndexError:
            if self._made >= MOST_LANES:
                return None
            lane = Lane(self._plan)
            self._made += 1
            return lane
