"""Room on the device for one operation's digests, and the order in which they are taken.

A lane belongs to a plan: the layers of one view, in groups, for up to so many pages. All it holds is
made once and lies where it lies, so that an operation takes a few calls of the driver and no more:

1. page ids, table entries and keys go from pinned memory to the device,
2. the first group's tiles are digested on a stream of ours, beside the engine's copies,
3. a load's second group follows its copies on the engine's own stream,
4. behind the last group the digests are rolled up, and stored or compared.

Captured graphs in their place were tried: less work for the host, and a longer wait for the last
digests (docs/digest.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from hicache_dbg.tracer.digest.driver import driven, driver
from hicache_dbg.tracer.digest.mark import Mark
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.launch import PreparedLaunch
    from hicache_dbg.tracer.digest.ring import ViolationRing

__all__ = ["HEAD", "Lane", "LaunchMaker", "Plan", "capacity_for", "groups_of"]

#: int64 words before the page ids: the operation's tag, and how many pages were found equal.
HEAD = 2
#: Layers in a load's last group, at least: as many as our engine keeps under way, and one.
_LAST_LAYERS = 3

Words = npt.NDArray[np.int64]


class LaunchMaker(Protocol):
    """What a lane asks of the device's kernels: see :class:`hicache_dbg.tracer.digest.gpu.GpuDigester`."""

    device: torch.device

    def digest_launch(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        out: torch.Tensor,
        *,
        few: bool,
    ) -> "PreparedLaunch":
        """A launch that digests whole pages into ``out``."""
        ...

    def settle_launch(  # noqa: PLR0917
        self,
        digests: torch.Tensor,
        layers: torch.Tensor,
        head: torch.Tensor,
        entries: torch.Tensor,
        keys: torch.Tensor,
        rollups: torch.Tensor,
        *,
        ring: "ViolationRing",
        compare: bool,
    ) -> "PreparedLaunch":
        """A launch that rolls digests up, and stores or compares."""
        ...

    def forget(self, view: View) -> None:
        """Let go of a view."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the lanes of one kind of operation have in common.

    ``groups`` are the view's layers, each digested once its bytes are there; ``rollups`` the
    table, int64 [host pages]; ``compare`` whether to compare with it or to store there. Memory is
    taken on ``stream``, ours alone: it was nobody's whose work on another stream may still use it.
    """

    view: View
    groups: tuple[tuple[int, ...], ...]
    capacity: int
    compare: bool
    rollups: torch.Tensor
    digester: "LaunchMaker"
    ring: "ViolationRing"
    stream: torch.cuda.Stream

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of all groups, in order."""
        return tuple(layer for group in self.groups for layer in group)


class Lane:
    """One operation's room; to be used again when its event has passed and it was read."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        capacity, device = plan.capacity, plan.digester.device
        rows = len(plan.layers)
        self.pages = 0
        self._block = torch.full((HEAD + 3 * capacity,), -1, dtype=torch.int64, pin_memory=True)
        words = self._block.numpy()
        self._head, body = words[:HEAD], words[HEAD:].reshape(3, capacity)
        self._ids, self._entries, self._keys = body
        with torch.cuda.stream(plan.stream):
            self.head = torch.empty_like(self._block, device=device)
            self.digests = torch.empty(rows, capacity, dtype=torch.int64, device=device)
            self._numbers = torch.tensor(plan.layers, dtype=torch.int64, device=device)
        plan.stream.synchronize()
        self._arrived, self._beside, self._awaited = Mark(), Mark(), False
        #: Behind the last digest, and the roll-ups.
        self.done = Mark() if plan.groups[1:] else self._beside
        self._digests = list(self._launches())
        _, entries, keys = self.head[HEAD:].view(3, capacity).unbind()
        self._settle = plan.digester.settle_launch(
            self.digests,
            self._numbers,
            self.head[:HEAD],
            entries,
            keys,
            plan.rollups,
            ring=plan.ring,
            compare=plan.compare,
        )
        self._upload = driver().cuMemcpyAsync
        self._uploaded = (self.head.data_ptr(), self._block.data_ptr(), self._block.nbytes)

    def fill(
        self, tag: int, pages: Words, entries: Words, keys: npt.NDArray[np.uint64], stream: int
    ) -> None:
        """Say, on ``stream``, which pages the next launch is of; no more than the plan's capacity."""
        count = len(pages)
        self._head[:] = (tag, 0)
        self._ids[:count] = pages
        self._entries[:count] = entries
        self._keys[:count] = keys.view(np.int64)
        if count < self.pages:  # the operation before had more
            self._ids[count : self.pages] = -1
            self._entries[count : self.pages] = -1
        self.pages = count
        driven(self._upload, *self._uploaded, stream)

    def arrive(self, stream: int) -> None:
        """All bytes of the first group are where they are to be after what ``stream`` was given."""
        self._arrived.record(stream)
        self._awaited = True

    def launch(self, stream: int) -> None:
        """Digest the first group on ``stream``, after its bytes have arrived or as they are."""
        if self._awaited:
            self._arrived.hold(stream)
            self._awaited = False
        self._digests[0](stream, self.pages)
        if not self._digests[1:]:
            self._settle(stream, self.pages)
        self._beside.record(stream)

    def close(self, stream: int) -> None:
        """Digest what is left on ``stream``, which goes on when all digests are taken and settled."""
        self._beside.hold(stream)
        for digest in self._digests[1:]:
            digest(stream, self.pages)
            self._settle(stream, self.pages)
            self.done.record(stream)

    def _launches(self) -> "Iterator[PreparedLaunch]":
        plan, first = self.plan, 0
        pages = self.head[HEAD:][: plan.capacity]
        for group in plan.groups:
            out = self.digests[first : first + len(group)]
            yield plan.digester.digest_launch(plan.view, group, pages, out, few=first > 0)
            first += len(group)


def capacity_for(pages: int) -> int:
    """The room for ``pages``: a power of two, so that few kinds of lanes serve all operations."""
    return max(8, 1 << (pages - 1).bit_length())


def groups_of(layers: Sequence[int], *, split: bool) -> tuple[tuple[int, ...], ...]:
    """Layers in one group or, with ``split``, the last few in another.

    What is digested after the last byte has come is what an operation waits for. The others are
    digested beside the last few's copies, which take several times as long.
    """
    last = max(_LAST_LAYERS, len(layers) // 16)
    if not split or len(layers) <= last:
        return (tuple(layers),)
    return tuple(layers[:-last]), tuple(layers[-last:])
