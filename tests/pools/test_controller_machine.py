"""Many concurrent readers in any order, against a model that only remembers insertions."""

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from tests.pools.caching import (
    LAYERS,
    P,
    Pages,
    Tokens,
    accounted,
    group_of,
    sequences,
    turn,
    write,
    wrong_pages,
)

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.ticket import LoadTicket

choices = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@dataclass(eq=False)
class Reader:
    """An open turn: its tokens, its match, and its ticket once it has one."""

    tokens: Tokens
    match: Match
    ticket: LoadTicket | None = None


class CacheMachine(RuleBasedStateMachine):
    """Whatever readers do, none sees another's page, and no page is lost."""

    readers = Bundle("readers")
    pins = Bundle("pins")

    @initialize(
        policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
        device_pages=st.integers(4, 9),
        host_pages=st.integers(2, 24),
        earlier=st.lists(choices, max_size=8),
    )
    def begin(
        self,
        policy: WritePolicy,
        device_pages: int,
        host_pages: int,
        earlier: list[list[int]],
    ) -> None:
        """Start with a cache of some size and policy, with earlier readers' pages in both tiers."""
        self.controller = HiCacheController(group_of(device_pages, host_pages), policy=policy)
        self.inserted: set[bytes] = set()
        self.open: set[Reader] = set()
        self.pinned = 0
        for tokens in sequences([[0, 1, 2, 0], [1, 1, 1], [2, 0, 1], *earlier]):
            turn(self.controller, tokens)
            self._remember(tokens)

    @rule(target=readers, choice=choices)
    def match(self, choice: list[int]) -> Reader:
        """A match is a prefix that was inserted."""
        (tokens,) = sequences([choice])
        match = self.controller.match(tokens)
        known = [n for n in range(1, len(choice) + 1) if tokens[: n * P].tobytes() in self.inserted]
        assert match.pages <= max(known, default=0)
        assert match.pages == match.device_pages.size + match.host_pages.size
        reader = Reader(tokens, match)
        self.open.add(reader)
        return reader

    @rule(reader=readers)
    def load_back(self, reader: Reader) -> None:
        """Loading brings the whole match, or says that there is no room."""
        try:
            reader.ticket = self.controller.load_back(reader.match)
        except OutOfPages:
            assert reader.ticket is None
        else:
            assert reader.ticket.device_pages.size == reader.match.pages

    @rule(reader=readers, layer=st.integers(0, LAYERS - 1))
    def read(self, reader: Reader, layer: int) -> None:
        """Behind its gate every page of the layer holds its own bytes."""
        if reader.ticket is not None:
            self.controller.wait_layer(layer, reader.ticket)
            pages = reader.ticket.device_pages
            assert wrong_pages(self.controller.group, reader.tokens, pages, layer) == []

    @rule(reader=consumes(readers), retract=st.booleans())
    def finish(self, reader: Reader, retract: bool) -> None:
        """A reader computes what it did not find, inserts everything and leaves."""
        pages = self._compute(reader)
        self.open.discard(reader)
        if pages is None:
            self.controller.unlock(reader.match)
            return
        if retract:
            self.controller.retract(reader.match, reader.tokens, pages)
        else:
            self.controller.insert(reader.tokens, pages)
            self.controller.unlock(reader.match)
        self._remember(reader.tokens)

    @rule(reader=consumes(readers))
    def give_up(self, reader: Reader) -> None:
        """A reader may leave at any time, even during its load."""
        self.open.discard(reader)
        self.controller.unlock(reader.match)

    @rule(target=pins, reader=readers)
    def pin(self, reader: Reader) -> Match:
        """A pinned prefix is held without a reader."""
        self.controller.pin(reader.match)
        self.pinned += 1
        return reader.match

    @rule(match=consumes(pins))
    def unpin(self, match: Match) -> None:
        """A pin is released."""
        self.controller.unpin(match)
        self.pinned -= 1

    @rule()
    def flush(self) -> None:
        """All copies end, and none has failed."""
        self.controller.flush()

    def _remember(self, tokens: Tokens) -> None:
        for end in range(P, tokens.size + 1, P):
            self.inserted.add(tokens[:end].tobytes())

    def _compute(self, reader: Reader) -> Pages | None:
        """Return the pages of all the reader's tokens, computing missing ones; None without room."""
        cached = reader.match.device_pages
        if reader.ticket is not None:
            self.controller.wait_layer(LAYERS - 1, reader.ticket)
            cached = reader.ticket.device_pages
        try:
            new = self.controller.alloc_device(reader.tokens.size // P - cached.size)
        except OutOfPages:
            return None
        pages = np.concatenate([cached, new])
        write(self.controller.group, reader.tokens, pages, first=cached.size)
        return pages

    @invariant()
    def adds_up(self) -> None:
        """Tree and allocators agree at every step."""
        self.controller.check()

    def teardown(self) -> None:
        """Without readers, exactly the cached pages are taken."""
        if not hasattr(self, "controller"):
            return
        for reader in self.open:
            self.controller.unlock(reader.match)
        self.controller.flush()
        self.controller.check()
        if not self.pinned:
            accounted(self.controller)
        self.controller.close()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
