"""Both ends in one process, each with its own pools, over NIXL or a wire driven by the test."""

import ctypes
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch
from tests import services
from tests.pools.caching import LAYERS, P, Pages, Tokens, group_of, page_of

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import HandoverError
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.planes import Descriptors, Starts
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.wire import TransferState, Wire

__all__ = [
    "WAIT_S",
    "HandWire",
    "P",
    "Pair",
    "Write",
    "agree",
    "arrived",
    "compute",
    "hand_over",
    "handmade",
    "links",
    "pair",
    "require_nixl",
    "tokens_of",
]

WAIT_S = 60.0


def require_nixl() -> None:
    """Skip where NIXL is not installed, unless services are promised."""
    here = any(find_spec(name) is not None for name in ("nixl_cu12", "nixl_cu13", "nixl"))
    services.require(here, "NIXL is not installed (extra nixl)")


@dataclass(eq=False)
class Write:
    """A transfer of a :class:`HandWire`: the rows still to be moved, and the notification behind them."""

    rows: list[tuple[int, int, int]]
    note: bytes
    released: bool = False

    @property
    def done(self) -> bool:
        """Whether every row has moved."""
        return not self.rows


@dataclass(eq=False)
class HandWire:
    """A wire whose bytes move row by row, when a test says so.

    A released write may still land, like one in a transport's buffers, until the receiving wire is
    closed.
    """

    peer: "HandWire | None" = None
    on_row: Callable[[int, int], None] = lambda _address, _size: None
    writes: list[Write] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    closed: bool = False
    agent: bytes = b"hand"

    def meet(self, agent: bytes, starts: Starts) -> None:
        """Do nothing: there is nothing to exchange."""

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Write:
        """Return the rows."""
        rows = [
            (int(a), int(b), int(n)) for (a, n, _), (b, _, _) in zip(local, remote, strict=True)
        ]
        return Write(rows, note)

    def begin(self, transfer: Write) -> None:
        """Queue the rows."""
        self.writes.append(transfer)

    def state(self, transfer: Write) -> TransferState:
        """Return ``DONE`` once every row has moved."""
        return "DONE" if transfer.done else "PROC"

    def release(self, transfer: Write) -> None:
        """Note the release; the bytes are not stopped."""
        transfer.released = True

    def notes(self) -> list[bytes]:
        """Return the notifications of complete writes."""
        notes, self.inbox = self.inbox, []
        return notes

    def close(self) -> None:
        """Stop writes from landing here."""
        self.closed = True

    def move(self, number: int = 0) -> bool:
        """Let one row of the ``number``-th write in progress land; return False if there is none."""
        under_way = [one for one in self.writes if one.rows]
        if not under_way:
            return False
        one = under_way[number % len(under_way)]
        source, target, size = one.rows.pop(0)
        assert self.peer is not None
        if not self.peer.closed:
            self.peer.on_row(target, size)
            ctypes.memmove(target, source, size)
            if one.done and not one.released:
                self.peer.inbox.append(one.note)
        return True

    def move_all(self) -> None:
        """Let all rows land."""
        while self.move():
            pass


@dataclass(eq=False)
class Pair:
    """Both ends, the pools behind them, and decode's allocator."""

    prefill: PrefillEnd
    decode: DecodeEnd
    ours: PoolGroup
    theirs: PoolGroup
    pages: PageAllocator
    ends: tuple[Connection, Connection]

    def computed(self, tokens: Tokens, pages: Pages) -> None:
        """Let prefill's model write ``pages``."""
        compute(self.ours, tokens, pages)

    def alloc(self, count: int) -> Pages:
        """Allocate pages at decode."""
        return self.pages.alloc(count)

    def settle(self, steps: int = 8) -> None:
        """Let both ends process their messages."""
        for _ in range(steps):
            self.prefill.step()
            self.decode.step()


def tokens_of(name: int, pages: int) -> Tokens:
    """Return tokens that are unique to this name."""
    return np.arange(pages * P, dtype=np.int32) + 1000 * name


def compute(group: PoolGroup, tokens: Tokens, pages: Pages) -> None:
    """Write bytes unique to these tokens, pool, layer and page, and the same in every process."""
    for target, wanted in _tiles(group, tokens, pages):
        target.copy_(wanted)


def arrived(group: PoolGroup, tokens: Tokens, pages: Pages) -> bool:
    """Return whether every tile of ``pages`` is what prefill computed."""
    return all(torch.equal(target.cpu(), wanted) for target, wanted in _tiles(group, tokens, pages))


def _tiles(
    group: PoolGroup, tokens: Tokens, pages: Pages
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for name in group.device:
        for layer in range(LAYERS):
            for at, page in enumerate(pages):
                target = page_of(group, name, layer, int(page))
                prefix = tokens[: (at + 1) * P].tobytes()
                generator = np.random.default_rng(zlib.crc32(prefix + f"{name}/{layer}".encode()))
                wanted = generator.integers(0, 256, target.numel(), np.uint8)
                yield target, torch.from_numpy(wanted)


def links(
    ours: PoolGroup,
    theirs: PoolGroup,
    wires: tuple[Wire | None, Wire | None],
    models: tuple[str, str] = ("m", "m"),
    silence_s: float = WAIT_S,
) -> tuple[Link, Link, tuple[Connection, Connection]]:
    """Return links that have not agreed yet."""
    a, b = Pipe()
    return (
        Link("prefill", ours, a, model=models[0], silence_s=silence_s, wire=wires[0]),
        Link("decode", theirs, b, model=models[1], silence_s=silence_s, wire=wires[1]),
        (a, b),
    )


def agree(*both: Link) -> list[Exception | None]:
    """Let both exchange contracts; return what each of them raised."""
    raised: list[Exception | None] = [None, None]

    def shake(number: int) -> None:
        try:
            both[number].agree()
        except HandoverError as error:
            raised[number] = error

    threads = [threading.Thread(target=shake, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return raised


@contextmanager
def pair(
    *,
    by_hand: bool,
    device_pages: int = 16,
    pump: bool = False,
    devices: tuple[str, str] = ("cpu", "cpu"),
) -> Iterator[Pair]:
    """Return two ends that have agreed; ``by_hand`` uses a wire that the test drives."""
    if not by_hand:
        require_nixl()
    wires: tuple[HandWire, HandWire] | tuple[None, None] = (None, None)
    if by_hand:
        one = HandWire()
        other = HandWire(peer=one)
        one.peer = other
        wires = one, other
    ours, theirs = (group_of(device_pages, device=device) for device in devices)
    a, b, ends = links(ours, theirs, wires)
    assert agree(a, b) == [None, None]
    allocator = PageAllocator(device_pages, "decode")
    made = Pair(
        PrefillEnd(a, pump=pump),
        DecodeEnd(b, allocator.free, pump=pump),
        ours,
        theirs,
        allocator,
        ends,
    )
    try:
        yield made
    finally:
        made.prefill.close()
        made.decode.close()
        ours.close()
        theirs.close()


def hand_over(
    made: Pair, count: int, before: Callable[[], object] = lambda: None, *, left: int = 0
) -> None:
    """``count`` pages, the last with room for ``left`` tokens."""
    tokens, source = tokens_of(1, count), np.arange(count)[::-1].copy()
    made.computed(tokens, source)
    receiving = made.decode.expect("r", made.alloc(count), len(tokens) - left)
    sending = made.prefill.send("r", source, len(tokens) - left, ("a" * 32, "b" * 16))
    made.settle()
    before()
    if isinstance(made.prefill.link.wire, HandWire):
        made.prefill.link.wire.move_all()
    made.settle()
    made.decode.wait(receiving, WAIT_S)
    made.prefill.wait(sending, WAIT_S)


@pytest.fixture
def handmade() -> Iterator[Pair]:
    """A pair over a wire that the test drives."""
    with pair(by_hand=True) as made:
        yield made
