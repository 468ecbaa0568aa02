"""Room on the device for one operation's digests, and the order in which they are taken.

A lane belongs to a plan: the layers of one view, in groups, for up to so many pages. All it holds is
made once and lies where it lies, so that an operation takes a few calls of the driver and no more:

1. the lists of its pages are written to pinned memory; of a few pages the kernels read them there,
   of more they are copied to the device first,
2. the tiles of all but the last few layers are digested, on a stream of ours beside the engine's copies
   where that can be,
3. a load's last group follows its copies on the engine's own stream,
4. whichever program takes a page's last digest rolls the page up, and stores or compares.

Captured graphs in their place were tried: less work for the host, and a longer wait for the last
digests (docs/digest.md).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.tracer.digest.driver import driven, driver
from hicache_dbg.tracer.digest.mark import Mark
from hicache_dbg.tracer.digest.plan import Pace
from hicache_dbg.tracer.digest.watch import Digests, Seen, Wanted
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.launch import PreparedLaunch

__all__ = ["Lane", "LaunchMaker", "Plan", "capacity_for", "groups_of"]

#: Layers in a load's last group, at least: as many as our engine keeps under way, and one.
_LAST_LAYERS = 3
#: Up to so many bytes an operation is digested in one go, a load behind its copies: that takes some
#: 10 us, and another launch and the order of two streams take as long.
IN_LINE_BYTES = 32 << 20

#: Up to so many pages kernels read the lists in host memory: each program waits for the bus, but
#: the host saves a call.
NEAR_PAGES = 32

Words = npt.NDArray[np.int64]


class LaunchMaker(Protocol):
    """What a lane asks of the device's kernels: see :class:`hicache_dbg.tracer.digest.gpu.GpuDigester`."""

    device: torch.device

    def watched_launch(  # noqa: PLR0917
        self,
        view: View,
        layers: Sequence[int],
        ids: int,
        out: torch.Tensor,
        job: int,
        pace: Pace,
    ) -> "PreparedLaunch":
        """A launch that digests whole pages into ``out``; the last one settles them."""
        ...

    def send(self, target: int, source: int, words: int, stream: int) -> None:
        """A copy of words of 64 bits, by address."""
        ...

    def forget(self, view: View) -> None:
        """Let go of a view."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the lanes of one kind of operation have in common.

    ``groups`` are the view's layers, each digested once its bytes are there; ``rollups`` the
    table, int64 [host pages]; ``compare`` whether to compare with it or to store there. Memory is
    taken on ``stream``, the bus's: it was nobody's whose work on another stream may still use it.
    ``read`` brings words home from the device; ``free`` are the lanes that nobody uses.
    """

    view: View
    groups: tuple[tuple[int, ...], ...]
    capacity: int
    compare: bool
    rollups: torch.Tensor
    digester: "LaunchMaker"
    stream: torch.cuda.Stream
    read: Callable[[torch.Tensor, int], Words]
    free: "deque[Lane]" = field(default_factory=deque)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of all groups, in order."""
        return tuple(layer for group in self.groups for layer in group)

    def pace_of(self, group: tuple[int, ...]) -> Pace:
        """What its launch is made for."""
        awaited = self.compare and len(self.groups) > 1 and group is self.groups[-1]
        return "awaited" if awaited else "fast"


class Lane:
    """One operation's room; to be used again when its event has passed and it was read."""

    def __init__(self, plan: Plan) -> None:
        self.groups = plan.groups
        self._plan = plan
        capacity, device = plan.capacity, plan.digester.device
        #: Pages, entries, generations and writes; then what became of them.
        self._lists = torch.full((5, capacity), -1, dtype=torch.int64, pin_memory=True)
        lists = self._lists.numpy()
        self._pages, self._entries, self._generations, self._writes, self._verdicts = lists
        self._wanted: Wanted | None = None
        self._count = 0
        with torch.cuda.stream(plan.stream):
            self._there = self._lists
            if capacity > NEAR_PAGES:
                self._there = torch.empty((4, capacity), dtype=torch.int64, device=device)
            shape = len(plan.layers), capacity
            self._digests = torch.empty(shape, dtype=torch.int64, device=device)
            self._numbers = torch.tensor(plan.layers, dtype=torch.int64, device=device)
            self._arrivals = torch.zeros(capacity, dtype=torch.int64, device=device)
            self._job = torch.tensor(self._words(), dtype=torch.int64, device=device)
        plan.stream.synchronize()
        *first, last = self._launches()
        self._launches_beside = first if plan.compare and first else [*first, last]
        self._rest = [last] if plan.compare and first else []
        self._beside, self._sent, self._on = Mark(), Mark(), 0
        #: Behind the last digest.
        self.done = Mark() if self._rest else self._beside
        self._copy = driver().cuMemcpyAsync
        self._copied = (self._there.data_ptr(), self._lists.data_ptr(), self._there.nbytes)

    def take(self, wanted: Wanted) -> None:
        """The next launches are of these pages, no more than the plan's capacity."""
        self._wanted, self._count = wanted, len(wanted.pages)

    def launch(self, stream: int, side: int) -> None:
        """Digest there what is digested first. The lists are sent on ``side``, which waits for nothing."""
        self._fill()
        if self._there is not self._lists:
            driven(self._copy, *self._copied, side)
            if stream != side:
                self._sent.record(side)
                self._sent.hold(stream)
        for launch in self._launches_beside:
            launch(stream, self._count)
        self._beside.record(stream)
        self._on = stream

    def _fill(self) -> None:
        """Launches will know which pages they are of."""
        wanted, count = self._wanted, self._count
        self._wanted = None
        assert wanted is not None  # noqa: S101 - it was taken
        self._pages[:count] = wanted.pages
        self._entries[:count] = wanted.entries
        self._generations[:count] = wanted.generations
        self._writes[:count] = wanted.writes

    def close(self, stream: int) -> None:
        """Digest what is left on ``stream``, which goes on when all digests are taken and settled."""
        if stream != self._on:
            self._beside.hold(stream)
        for launch in self._rest:
            launch(stream, self._count)
            self.done.record(stream)

    def seen(self) -> Seen:
        """What was found, once that is done: of a load, digests of what is not confirmed."""
        count = self._count
        if not self._plan.compare:
            return Seen(np.zeros(count, np.bool_), self._read())
        confirmed = self._verdicts[:count] != 0
        if confirmed.all():
            return Seen(confirmed, np.zeros((len(self._digests), count), np.uint64))
        digests = self._read()
        digests[:, confirmed] = 0
        return Seen(confirmed, digests)

    def free(self) -> None:
        """Nobody asks any more."""
        self._plan.free.append(self)

    def _read(self) -> Digests:
        return self._plan.read(self._digests, self._count).view(np.uint64)

    def _list(self, number: int) -> int:
        return self._there[number].data_ptr()

    def _words(self) -> tuple[int, ...]:
        """The operation's job, as :data:`hicache_dbg.tracer.digest.job.JOB` has it."""
        plan, digests = self._plan, self._digests
        return (
            *(len(digests), len(plan.groups[-1]), self._arrivals.data_ptr()),
            *(digests.data_ptr(), digests.stride(0), self._numbers.data_ptr()),
            *(self._list(1), self._list(2), self._list(3)),
            *(plan.rollups.data_ptr(), len(plan.rollups)),
            self._lists[4].data_ptr() if plan.compare else 0,
        )

    def _launches(self) -> "Iterator[PreparedLaunch]":
        plan, first = self._plan, 0
        for group in plan.groups:
            out = self._digests[first : first + len(group)]
            job = self._job.data_ptr() if group is plan.groups[-1] else 0
            yield plan.digester.watched_launch(
                plan.view, group, self._list(0), out, job, plan.pace_of(group)
            )
            first += len(group)


def capacity_for(pages: int) -> int:
    """The room for ``pages``: a power of two, so that few kinds of lanes serve all operations."""
    return max(4, 1 << (pages - 1).bit_length())


def groups_of(layers: Sequence[int], *, split: bool) -> tuple[tuple[int, ...], ...]:
    """Layers in one group or, with ``split``, the last few in another.

    What is digested after a load's last byte has come is what the load waits for. The others are
    digested beside the last few's copies, which take several times as long. Pages are settled in
    the last group, whose programs take a little longer for it: another reason to keep it small.
    """
    last = max(_LAST_LAYERS, len(layers) // 16)
    if not split or len(layers) <= last:
        return (tuple(layers),)
    return tuple(layers[:-last]), tuple(layers[-last:])
