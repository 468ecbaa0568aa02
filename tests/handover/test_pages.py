"""The pages of a handover: neither end digests, reuses or overwrites one at the wrong time."""

from threading import Event, Thread

import numpy as np
import pytest
from tests.handover.pair import (
    WAIT_S,
    HandWire,
    P,
    Pair,
    arrived,
    hand_over,
    pair,
    tokens_of,
)
from tests.handover.watched import by_role, traced
from tests.pools.caching import LAYERS, page_of

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.quarantine import Quarantine
from hicache_dbg.tracer.attach import hicache_handover_held, hicache_handover_receipts
from hicache_dbg.tracer.attach.hicache_handover_beside import Job
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op


@pytest.mark.parametrize("patient", [True, False])
def test_a_page_is_not_given_away_before_it_was_digested(
    monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """Whoever frees a page waits for the thread beside, and only for so long."""
    monkeypatch.setattr(hicache_handover_held, "MOST_S", 10.0 if patient else 0.0)
    go_on, begun = Event(), Event()

    def busy() -> None:
        begun.set()
        go_on.wait(10)

    with traced() as (sink, told), pair(by_hand=True, device_pages=4) as made:
        made.decode.generation = made.pages.generation
        hand_over(made, 4, lambda: told.attachment._received_beside.give(Job(busy)))
        assert begun.wait(10)
        owner = Thread(target=_given_away, args=(made,))
        owner.start()
        owner.join(0.1 if patient else 10)
        assert owner.is_alive() is patient
        go_on.set()
        owner.join(10)
        told.flush()
    skipped = {sum(copy.skipped.values()) for copy in sink.of(Copied) if copy.op is Op.RECV}
    assert skipped == {0 if patient else 3 * LAYERS}


def _given_away(made: Pair) -> None:
    """Its first three pages are freed, and are another's at once."""
    made.pages.free(np.arange(3))
    made.pages.alloc(3)


@pytest.mark.parametrize("left", [0, 1])
def test_the_next_token_goes_into_no_page_that_is_not_digested(left: int) -> None:
    """Decode goes on at once, though the thread is busy; a full page it does not write."""
    go_on = Event()
    with traced() as (sink, told), pair(by_hand=True, device_pages=4) as made:
        made.decode.generation = made.pages.generation
        hand_over(
            made,
            2,
            lambda: told.attachment._received_beside.give(Job(lambda: _wait(go_on))),
            left=left,
        )
        if left:
            page_of(made.theirs, "mla", 0, 1)[-1] ^= 1  # what decode computes next
        go_on.set()
        told.flush()
    assert {copy.witnessed for copy in sink.of(Copied)} == {2 * LAYERS}
    assert join(by_role(sink.events)) == []


def test_a_write_waits_for_no_digest_and_its_pages_for_all() -> None:
    """The bytes go at once; prefill has its pages back when they are digested as well."""
    go_on = Event()
    with traced() as (sink, told), pair(by_hand=True) as made:
        wire = made.prefill.link.wire
        assert isinstance(wire, HandWire)
        told.attachment._sent_beside.give(Job(lambda: _wait(go_on)))
        receiving = made.decode.expect("r", made.alloc(2), 2 * P)
        sending = made.prefill.send("r", np.array([3, 4]), 2 * P)
        made.settle()
        wire.move_all()
        made.decode.step()
        made.decode.wait(receiving, 0.0)
        finishing = Thread(target=made.prefill.step)
        finishing.start()
        finishing.join(0.1)
        assert finishing.is_alive()
        assert not sending.over
        go_on.set()
        finishing.join(WAIT_S)
        made.prefill.wait(sending, 0.0)
        told.flush()
    assert join(by_role(sink.events)) == []


@pytest.mark.parametrize("freed", [True, False])
def test_digests_at_decode_give_way_to_a_write_until_somebody_wants_the_pages(
    monkeypatch: pytest.MonkeyPatch, freed: bool
) -> None:
    """They are taken once nothing is being written, or whoever frees the pages waits for them."""
    monkeypatch.setattr(hicache_handover_receipts, "LATEST_S", WAIT_S)
    with traced() as (sink, told), pair(by_hand=True) as made:
        made.decode.generation = made.pages.generation
        wire = made.prefill.link.wire
        assert isinstance(wire, HandWire)
        pages = [made.alloc(2) for _ in range(3)]
        for at, own in enumerate(pages):
            made.decode.expect(f"r{at}", own, 2 * P)
            made.prefill.send(f"r{at}", np.array([2 * at, 2 * at + 1]), 2 * P)
        made.settle()
        while not wire.writes[1].done:
            wire.move()
        made.settle()
        assert made.decode.receiving
        assert not [copy for copy in sink.of(Copied) if copy.op is Op.RECV]
        if freed:
            made.pages.free(pages[1])
            told.flush()
            found = [copy.witnessed for copy in sink.of(Copied) if copy.op is Op.RECV]
            assert found == [2 * LAYERS] * 4
        wire.move_all()
        made.settle()
        assert not made.decode.receiving
        told.flush()
    assert [copy.witnessed for copy in sink.of(Copied)] == [2 * LAYERS] * 12
    assert join(by_role(sink.events)) == []


def _wait(event: Event) -> None:
    assert event.wait(WAIT_S)


def test_a_write_that_lands_in_reused_pages_is_named_and_held_pages_are_never_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were nothing held back: the request that has the pages now, and whose bytes came late."""
    for holds in (True, False):
        if not holds:
            monkeypatch.setattr(Quarantine, "hold", lambda *_: None)
        with traced() as (sink, told), pair(by_hand=True, device_pages=4) as made:
            wire = made.prefill.link.wire
            assert isinstance(wire, HandWire)
            requests = []
            for name in (1, 2):
                tokens, source = tokens_of(name, 2), np.array([2 * name - 2, 2 * name - 1])
                made.computed(tokens, source)
                receiving = made.decode.expect(f"r{name}", made.alloc(2), len(tokens))
                requests.append(
                    (receiving, made.prefill.send(f"r{name}", source, len(tokens)), tokens)
                )
                made.settle()
                if name == 1:
                    wire.move()
                    made.decode.abort(receiving, "decode does not want it")
                    made.settle()
                    if not holds:
                        made.pages.free(receiving.pages)
            while not wire.writes[1].done:
                wire.move(1)
            wire.move_all()
            made.settle()
            (_, (landed, _, tokens)) = requests
            assert arrived(made.theirs, tokens, landed.pages) is holds
            told.flush()
        findings = join(by_role(sink.events))
        if holds:
            assert findings == []
            continue
        late = [finding for finding in findings if finding.cls is FaultClass.SLOT_REUSE]
        assert {finding.pool for finding in late} == {"mla", "dsa_index_k"}
        assert all("request r2" in finding.message for finding in late)
        assert all("was sent for request r1" in finding.message for finding in late)


@pytest.mark.parametrize(("freed", "again"), [(2, True), (2, False), (0, True)])
def test_a_page_that_prefill_reallocates_before_its_handover_is_over_is_named(
    freed: int, again: bool
) -> None:
    """Both ends agree on the new bytes; a page that was only freed still holds the old ones."""
    with traced() as (sink, told), pair(by_hand=True, device_pages=8) as made:
        pages = PageAllocator(8, "prefill")
        made.prefill.generation = pages.generation
        source = pages.alloc(4)

        def reuse() -> None:
            pages.free(source[:freed])
            if again:
                pages.alloc(8 - len(source) + freed)

        receiving = made.decode.expect("r", made.alloc(4), 4 * P)
        sending = made.prefill.send("r", source, 4 * P)
        reuse()
        made.settle()
        assert isinstance(made.prefill.link.wire, HandWire)
        made.prefill.link.wire.move_all()
        made.settle()
        made.prefill.wait(sending, WAIT_S)
        made.decode.wait(receiving, WAIT_S)
        told.flush()
    found = [(f.cls, f.page_count, f.requests) for f in sink.of(Finding)]
    assert found == ([(FaultClass.SLOT_REUSE, freed, ("r",))] if freed and again else [])
