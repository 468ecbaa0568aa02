"""Any order of offers, writes, aborts, reuse and death: no byte lands in another request's page."""

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.handover.pair import HandWire, arrived, pair, tokens_of

from hicache_dbg.pools.handover.requests import Receiving, RecvState

if TYPE_CHECKING:
    from hicache_dbg.pools.handover.requests import Sending

PAGES = 8
NUMBERS = st.integers(0, 7)


class Handovers(RuleBasedStateMachine):
    """Two ends, a wire that moves row by row, and a model of who owns each page."""

    def __init__(self) -> None:
        super().__init__()
        self._context = pair(by_hand=True, device_pages=PAGES)
        self.pair = self._context.__enter__()
        self.requests: list[tuple[Receiving, Sending, int]] = []
        self.count = 0
        wire, other = self.pair.prefill.link.wire, self.pair.decode.link.wire
        assert isinstance(wire, HandWire)
        assert isinstance(other, HandWire)
        self.wire, other.on_row = wire, self._landing
        self.dead = False

    def _landing(self, address: int, _size: int) -> None:
        """Check that a byte lands only in pages that prefill was granted and nobody else has."""
        planes = self.pair.decode.link.ours.planes
        page = next(
            (address - plane.base) // plane.stride
            for plane in planes
            if 0 <= address - plane.base < plane.stride * PAGES
        )
        held = set(self.pair.decode.quarantined.tolist())
        granted = {
            int(page)
            for one in self.pair.decode._granted.values()
            if one.state is RecvState.GRANTED
            for page in one.pages
        }
        assert page in held | granted, f"page {page} was written and is nobody's to write"

    @precondition(lambda self: not self.dead and self.pair.pages.available >= 2)
    @rule()
    def hand_over(self) -> None:
        """Submit a new request of two pages."""
        self.count += 1
        name, source = self.count, np.array([self.count % PAGES, (self.count + 3) % PAGES])
        if any(
            not sending.over and set(sending.pages.tolist()) & set(source.tolist())
            for _, sending, _ in self.requests
        ):
            return  # its pages are still read
        tokens = tokens_of(name, 2)
        self.pair.computed(tokens, source)
        receiving = self.pair.decode.expect(f"r{name}", self.pair.alloc(2), len(tokens))
        sending = self.pair.prefill.send(f"r{name}", source, len(tokens))
        self.requests.append((receiving, sending, name))

    @rule(steps=st.lists(st.booleans(), min_size=1, max_size=6))
    def they_listen(self, steps: list[bool]) -> None:
        """Let one or both ends process messages; check arrived requests and release them at once."""
        for at_decode in steps:
            (self.pair.decode if at_decode else self.pair.prefill).step()
        for receiving, _, name in list(self.requests):
            if receiving.state is RecvState.LANDED:
                assert arrived(self.pair.theirs, tokens_of(name, 2), receiving.pages)
                self.pair.pages.free(receiving.pages)
                self.requests = [one for one in self.requests if one[0] is not receiving]

    @rule(number=NUMBERS, rows=st.integers(1, 12))
    def bytes_move(self, number: int, rows: int) -> None:
        """Move some rows of one of the writes in progress."""
        for _ in range(rows):
            self.wire.move(number)

    @precondition(lambda self: self.requests)
    @rule(number=NUMBERS, at_decode=st.booleans())
    def abort(self, number: int, at_decode: bool) -> None:
        """Abort a request at either end."""
        receiving, sending, _ = self.requests[number % len(self.requests)]
        if at_decode:
            self.pair.decode.abort(receiving, "decode does not want it")
        else:
            self.pair.prefill.abort(sending, "prefill does not want it")

    @precondition(lambda self: not self.dead and self.count > 3)
    @rule(late=st.booleans())
    def prefill_goes(self, late: bool) -> None:
        """Lose prefill: it is killed, or gives the peer up because a write takes too long."""
        self.dead = True
        if late:
            self.pair.prefill._timeout = 0.0
            self.pair.prefill.step()
            self.pair.prefill._timeout = 60.0
            self.dead = bool(self.pair.prefill.lost)
        else:
            self.wire.writes.clear()  # nobody is there to write on
            self.pair.ends[0].close()
            self.pair.prefill.lost = "killed"

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        """Each page is exactly one of free, lent, landed and not yet read, or held back."""
        self.pair.pages.check()
        mine = [one.pages for one, _, _ in self.requests if one.state is not RecvState.FAILED]
        held = self.pair.decode.quarantined
        used = np.concatenate([np.empty(0, np.int64), *mine, held])
        assert len(set(used.tolist())) == used.size
        assert self.pair.pages.available + used.size == PAGES

    def teardown(self) -> None:
        """In the end every page comes back."""
        self.wire.move_all()
        if not self.pair.prefill.lost:
            self.pair.settle()
        else:
            self.pair.decode.step()
            self.pair.decode.step()
        self.wire.move_all()
        self._context.__exit__(None, None, None)
        assert not self.pair.decode.quarantined.size


TestHandovers = Handovers.TestCase
TestHandovers.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
