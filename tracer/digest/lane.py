"""Room on the device for one operation's digests, and the order in which they are taken.

A lane belongs to a plan: the layers of one view, in groups, for up to a certain number of pages. It
allocates everything once, at fixed addresses, so that an operation takes only a few driver calls:

1. The lists of its pages are written to pinned memory. For few pages the kernels read them there; for
   more they are copied to the device first.
2. The tiles of all but the last few layers are digested, on our own stream beside the engine's copies
   if possible.
3. A load's last group follows its copies on the engine's own stream.
4. The program that takes a page's last digest rolls the page up, and stores or compares the roll-up.

Captured graphs instead of launches cost the host less, but delayed the last digests (docs/digest.md).
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
from hicache_dbg.tracer.digest.watch import Digests, Seen, Wanted
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.launch import PreparedLaunch

__all__ = ["Lane", "LaunchMaker", "Plan", "capacity_for", "groups_of"]

#: The fewest layers in a load's last group: one more than our engine keeps in flight.
_LAST_LAYERS = 3
#: Operations of up to this many bytes are digested in one go, loads behind their copies. That takes
#: about 10 us, no longer than a second launch and the ordering of two streams would.
IN_LINE_BYTES = 32 << 20

#: For up to this many pages, kernels read the lists in host memory. Each program waits for the bus,
#: but the host saves a call.
NEAR_PAGES = 32

Words = npt.NDArray[np.int64]


class LaunchMaker(Protocol):
    """The kernels a lane needs; see :class:`hicache_dbg.tracer.digest.gpu.GpuDigester`."""

    device: torch.device

    def watched_launch(
        self, view: View, layers: Sequence[int], ids: int, out: torch.Tensor, job: int
    ) -> "PreparedLaunch":
        """Prepare a launch that digests whole pages into ``out``; the last one settles them."""
        ...

    def send(self, target: int, source: int, words: int, stream: int) -> None:
        """Enqueue a copy of 64-bit words, by address."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the lanes of one kind of operation have in common.

    ``groups`` are the view's layers, each group digested once its bytes are there. ``rollups`` is the
    table, int64 [host pages], and ``compare`` says whether to compare with it or to store into it.
    Memory is allocated on ``stream``, the bus's, so that no other stream's pending work can still be
    using it. ``read`` copies words from the device; ``free`` holds the unused lanes.
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


class Lane:
    """One operation's room, reusable once its event has passed and its results have been read."""

    def __init__(self, plan: Plan) -> None:
        self.groups = plan.groups
        self._plan = plan
        capacity, device = plan.capacity, plan.digester.device
        #: Pages, entries, generations, writes, and the verdicts on the pages.
        self._lists = torch.full(
            (5, capacity), -1, dtype=torch.int64, device="cpu", pin_memory=True
        )
        lists = self._lists.numpy()
        self._pages, self._entries, self._generations, self._writes, self._verdicts = lists
        self._wanted: Wanted | None = None
        self._count = 0
        with torch.cuda.stream(plan.stream):  # and so on its device, whatever the caller's is
            self._there = self._lists
            if capacity > NEAR_PAGES:
                self._there = torch.empty((4, capacity), dtype=torch.int64, device=device)
            shape = len(plan.layers), capacity
            self._digests = torch.empty(shape, dtype=torch.int64, device=device)
            self._numbers = torch.tensor(plan.layers, dtype=torch.int64, device=device)
            self._arrivals = torch.zeros(capacity, dtype=torch.int64, device=device)
            self._job = torch.tensor(self._words(), dtype=torch.int64, device=device)
            *first, last = self._launches()
            self._launches_beside = first if plan.compare and first else [*first, last]
            self._rest = [last] if plan.compare and first else []
            self._beside, self._sent, self._on = Mark(), Mark(), 0
            #: Recorded behind the last digest.
            self.done = Mark() if self._rest else self._beside
        plan.stream.synchronize()
        self._copy = driver().cuMemcpyAsync
        self._copied = (self._there.data_ptr(), self._lists.data_ptr(), self._there.nbytes)

    def take(self, wanted: Wanted) -> None:
        """Set the pages of the next launches, at most as many as the plan's capacity."""
        self._wanted, self._count = wanted, len(wanted.pages)

    def launch(self, stream: int, side: int) -> None:
        """Digest the first groups on ``stream``, uploading the lists on ``side``, which never waits."""
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
        """Write the lists that the launches read."""
        wanted, count = self._wanted, self._count
        self._wanted = None
        assert wanted is not None  # noqa: S101 - it was taken
        self._pages[:count] = wanted.pages
        self._entries[:count] = wanted.entries
        self._generations[:count] = wanted.generations
        self._writes[:count] = wanted.writes

    def close(self, stream: int) -> None:
        """Digest the rest on ``stream``, and make it wait until every digest is taken and settled."""
        if stream != self._on:
            self._beside.hold(stream)
        for launch in self._rest:
            launch(stream, self._count)
            self.done.record(stream)

    def seen(self) -> Seen:
        """Return what was found, once ``done`` has passed: a load's digests only where not confirmed."""
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
        """Make the lane available to another operation."""
        self._plan.free.append(self)

    def _read(self) -> Digests:
        return self._plan.read(self._digests, self._count).view(np.uint64)

    def _list(self, number: int) -> int:
        return self._there[number].data_ptr()

    def _words(self) -> tuple[int, ...]:
        """Return the operation's job, laid out as :data:`hicache_dbg.tracer.digest.job.JOB`."""
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
            yield plan.digester.watched_launch(plan.view, group, self._list(0), out, job)
            first += len(group)


def capacity_for(pages: int) -> int:
    """Return the capacity for ``pages``: a power of two, so that a few kinds of lanes serve all sizes."""
    return max(4, 1 << (pages - 1).bit_length())


def groups_of(layers: Sequence[int], *, split: bool) -> tuple[tuple[int, ...], ...]:
    """Return the layers as one group or, with ``split``, with the last few in a group of their own.

    A load only waits for the digests taken after its last byte has arrived. The other layers are
    digested while the last few are being copied, which takes several times as long. The last group
    also settles the pages, which makes its programs a little slower: another reason to keep it small.
    """
    last = max(_LAST_LAYERS, len(layers) // 16)
    if not split or len(layers) <= last:
        return (tuple(layers),)
    return tuple(layers[:-last]), tuple(layers[-last:])
