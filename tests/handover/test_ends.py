"""Requests between ends: all tiles arrive, counts are compared, aborts leave nothing behind."""

from typing import Any

import numpy as np
import pytest
from tests.handover.pair import (
    WAIT_S,
    HandWire,
    Pair,
    Write,
    arrived,
    handmade,
    pair,
    tokens_of,
)
from tests.pools.forking import FORKS, in_child

from hicache_dbg.pools.handover.errors import HandoverError, PeerLost, Refused
from hicache_dbg.pools.handover.frames import POLL_S
from hicache_dbg.pools.handover.messages import Beat, Ended, Message
from hicache_dbg.pools.handover.requests import RecvState, SendState

__all__ = ["handmade"]


def _wire(made: Pair) -> HandWire:
    wire = made.prefill.link.wire
    assert isinstance(wire, HandWire)
    return wire


def test_every_tile_arrives_in_unrelated_slots_over_nixl() -> None:
    """All pools, layers and pages of several requests, each with one transfer."""
    with pair(by_hand=False, pump=True) as made:
        for name, (source, count) in enumerate([([3, 1, 7], 3), ([0], 1), ([9, 8, 2, 5], 4)]):
            tokens, pages = tokens_of(name, count), np.array(source)
            made.computed(tokens, pages)
            room = made.alloc(count)
            receiving = made.decode.expect(f"r{name}", room, len(tokens))
            sending = made.prefill.send(f"r{name}", pages, len(tokens), ("t" * 32, "s" * 16))
            made.decode.wait(receiving, WAIT_S)
            made.prefill.wait(sending, WAIT_S)
            assert receiving.trace == ("t" * 32, "s" * 16)
            assert arrived(made.theirs, tokens, room)
        assert not made.decode.quarantined.size


def test_an_offer_may_come_before_it_is_expected(handmade: Pair) -> None:
    """The two engines may reach a request in any order."""
    sending = handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.settle()
    _wire(handmade).move_all()
    handmade.settle()
    assert (receiving.state, sending.state) == (RecvState.LANDED, SendState.DONE)


def test_a_burst_that_no_socket_holds_goes_over() -> None:
    """Offers fill one direction and rooms the other, and neither end waits for the other to read."""
    many = 1200
    with pair(by_hand=True, device_pages=many) as made:
        wire = _wire(made)
        expected = [made.decode.expect(f"r{at}", made.alloc(1), 4) for at in range(many)]
        sendings = [made.prefill.send(f"r{at}", np.array([at]), 4) for at in range(many)]
        assert made.prefill.link.channel._frames.unsent
        for _ in range(4 * many):
            made.prefill.step()
            made.decode.step()
            wire.move_all()
        assert {receiving.state for receiving in expected} == {RecvState.LANDED}
        assert {sending.state for sending in sendings} == {SendState.DONE}


@pytest.mark.parametrize("before", [False, True])
def test_a_request_that_is_offered_twice_is_written_once(handmade: Pair, before: bool) -> None:
    """The second write would land in pages that are the engine's by then; the second offer is refused."""
    sendings = []
    if before:
        sendings = [handmade.prefill.send("r", np.array([1, 2]), 8) for _ in range(2)]
        handmade.settle()
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    sendings = sendings or [handmade.prefill.send("r", np.array([1, 2]), 8) for _ in range(2)]
    handmade.settle()
    assert len(_wire(handmade).writes) == 1
    _wire(handmade).move_all()
    handmade.settle()
    assert (receiving.state, sendings[0].state) == (RecvState.LANDED, SendState.DONE)
    with pytest.raises(Refused, match="request r is offered already"):
        handmade.prefill.wait(sendings[1], 0.0)
    assert not handmade.decode.receiving


def test_pages_that_this_end_lacks_are_refused_at_once(handmade: Pair) -> None:
    """Neither end gives the other up for a caller's mistake."""
    with pytest.raises(
        ValueError, match=r"1 of 2 pages, the first 99, outside of this end's 0..15"
    ):
        handmade.prefill.send("r", np.array([1, 99]), 8)
    assert not handmade.prefill.lost


def test_a_write_that_cannot_be_prepared_ends_its_request_alone(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written, so its pages come back and the others go on."""
    wire = _wire(handmade)
    other = handmade.prefill.send("s", np.array([3]), 4)
    handmade.decode.expect("s", handmade.alloc(1), 4)
    handmade.settle()

    def refuse(*_: object) -> None:
        raise HandoverError("NIXL: no")

    monkeypatch.setattr(wire, "prepare", refuse)
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    sending = handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    assert (receiving.state, sending.state) == (RecvState.FAILED, SendState.FAILED)
    assert (receiving.reason, sending.reason) == ("NIXL: no",) * 2
    assert handmade.pages.available == 15
    wire.move_all()
    handmade.settle()
    assert other.state is SendState.DONE


def test_a_request_taken_over_as_its_wait_ends_is_no_error(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the wait and the abort: it is done, as the caller finds."""
    handmade.decode.expect("r", handmade.alloc(1), 4)
    sending = handmade.prefill.send("r", np.array([1]), 4)
    abort = handmade.prefill.abort

    def meanwhile(*args: Any) -> None:
        handmade.settle()
        _wire(handmade).move_all()
        handmade.settle()
        abort(*args)

    monkeypatch.setattr(handmade.prefill, "abort", meanwhile)
    handmade.prefill.wait(sending, 0.0)
    assert sending.state is SendState.DONE


@FORKS
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_forked_child_leaves_the_handover_to_its_parent(by_hand: bool) -> None:
    """It is refused everything, closes without effect, and keeps no socket of the parent's open."""
    with pair(by_hand=by_hand, pump=not by_hand) as made:
        if not by_hand:  # connected
            first = made.decode.expect("q", made.alloc(1), 4)
            made.prefill.wait(made.prefill.send("q", np.array([0]), 4), WAIT_S)
            made.decode.wait(first, WAIT_S)
        sending = made.prefill.send("r", np.array([1, 2]), 8)
        receiving = made.decode.expect("s", made.alloc(1), 4)
        told = in_child(
            lambda: made.prefill.send("t", np.array([1]), 4),
            lambda: made.decode.expect("t", np.array([1]), 4),
            lambda: made.prefill.wait(sending, WAIT_S),
            lambda: made.decode.wait(receiving, WAIT_S),
            lambda: made.decode.link.channel.send(Beat()),
            made.prefill.close,
            made.decode.close,
            lambda: [connection.closed for connection in made.ends],
        )
        ours = "belongs to the process that this one was forked from"
        assert told == [
            *[f"PeerLost: the handover {ours}"] * 2,
            f"PeerLost: request r: the handover {ours}",
            f"PeerLost: request s: the handover {ours}",
            f"PeerLost: the channel {ours}",
            *["None"] * 2,
            "[True, True]",
        ]
        room = made.decode.expect("r", made.alloc(2), 8)
        if by_hand:
            made.settle()
            _wire(made).move_all()
            made.settle()
        made.decode.wait(room, WAIT_S)
        made.prefill.wait(sending, WAIT_S)
        assert (made.prefill.lost, made.decode.lost) == ("", "")


def test_a_request_that_is_written_does_not_wait_for_the_next_write(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that moves its bytes before it returns, as NIXL's does on a CPU, completes at once."""
    wire, over = _wire(handmade), []
    begin = wire.begin

    def at_once(transfer: Write) -> None:
        over.append([sending.over for sending in sendings])
        begin(transfer)
        wire.move_all()

    monkeypatch.setattr(wire, "begin", at_once)
    sendings = [handmade.prefill.send(f"r{at}", np.array([at]), 4) for at in range(3)]
    for at in range(3):
        handmade.decode.expect(f"r{at}", handmade.alloc(1), 4)
    handmade.settle()
    assert over == [[False, False, False], [True, False, False], [True, True, False]]


def test_a_write_that_is_done_wakes_decode(handmade: Pair) -> None:
    """Decode sleeps on the channel, so a message must tell it to look for the notification."""
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    _wire(handmade).move_all()
    assert not handmade.ends[1].poll()
    handmade.prefill.step()
    assert handmade.ends[1].poll()
    handmade.decode.step()
    assert receiving.state is RecvState.LANDED


@pytest.mark.parametrize("wait", [0.0, POLL_S / 5, 2 * POLL_S])
def test_a_word_is_heard_after_any_wait(handmade: Pair, wait: float) -> None:
    """This includes a wait shorter than a connection's timeout can express."""
    prefill, decode = handmade.prefill.link.channel, handmade.decode.link.channel
    assert decode.receive(wait) is None
    prefill.send(Beat())
    assert decode.receive(wait) == Beat()


@pytest.mark.parametrize(("pages", "tokens"), [(1, 8), (3, 8), (2, 9)])
def test_counts_that_differ_are_refused_with_both(handmade: Pair, pages: int, tokens: int) -> None:
    """Nothing is written, both ends report both counts, and the pages are free again."""
    receiving = handmade.decode.expect("r", handmade.alloc(pages), tokens)
    sending = handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    why = (
        f"prefill hands over 2 pages for 8 tokens, decode expects {pages} pages for {tokens} tokens"
    )
    for wait, one in ((handmade.prefill.wait, sending), (handmade.decode.wait, receiving)):
        with pytest.raises(Refused, match=why):
            wait(one, 0.0)  # type: ignore[arg-type]
    assert handmade.pages.available == 16
    assert not _wire(handmade).writes


def test_decode_aborts_under_way_and_the_page_is_reused_only_when_nobody_writes_it(
    handmade: Pair,
) -> None:
    """The page is reused only after the writer's last byte."""
    tokens, source = tokens_of(1, 2), np.array([4, 5])
    handmade.computed(tokens, source)
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", source, 8)
    handmade.settle()
    _wire(handmade).move()
    handmade.decode.abort(receiving, "the client went away")
    handmade.settle()
    assert handmade.decode.quarantined.tolist() == receiving.pages.tolist()
    assert handmade.pages.available == 14
    _wire(handmade).move_all()
    handmade.settle()
    assert not handmade.decode.quarantined.size
    assert handmade.pages.available == 16


def test_prefill_aborts_under_way_and_keeps_its_pages_until_they_are_read(handmade: Pair) -> None:
    """Decode does not admit the request; its source may be overwritten only after the last read."""
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    sending = handmade.prefill.send("r", np.array([4, 5]), 8)
    handmade.settle()
    handmade.prefill.abort(sending, "retracted")
    handmade.settle()
    assert receiving.state is RecvState.FAILED
    assert not sending.over
    assert handmade.decode.quarantined.size == 2
    _wire(handmade).move_all()
    handmade.settle()
    assert sending.over
    assert handmade.pages.available == 16


def test_an_offer_withdrawn_before_room_was_given_is_over_at_once(handmade: Pair) -> None:
    """Neither end waits for it."""
    sending = handmade.prefill.send("r", np.array([4, 5]), 8)
    handmade.prefill.abort(sending, "retracted")
    handmade.settle()
    assert sending.state is SendState.FAILED
    assert handmade.decode._offers == {}


def test_a_peer_that_goes_leaves_nothing_held(handmade: Pair) -> None:
    """When the peer's channel closes, requests in progress fail and their pages come back."""
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", np.array([4, 5]), 8)
    handmade.settle()
    handmade.ends[0].close()  # as the kernel does for a killed process
    handmade.decode.step()
    with pytest.raises(PeerLost, match="its end of the channel is closed"):
        handmade.decode.wait(receiving, 0.0)
    handmade.decode.step()
    assert handmade.pages.available == 16
    with pytest.raises(PeerLost):
        handmade.decode.expect("s", handmade.alloc(1), 4)


def test_a_room_outside_of_decodes_pages_is_not_written(handmade: Pair) -> None:
    """Page ids are checked against the range that the other end announced."""
    receiving = handmade.decode.expect("r", np.array([1, 99]), 8)
    sending = handmade.prefill.send("r", np.array([4, 5]), 8)
    handmade.prefill.step()
    handmade.decode.step()
    handmade.prefill.step()
    assert "1 of them outside its 0..15" in sending.reason
    assert not _wire(handmade).writes
    receiving.pages = receiving.pages[:0]  # nothing that the allocator could take back
    handmade.settle()


def test_a_late_write_gives_the_peer_up(handmade: Pair) -> None:
    """A transfer that never ends is released; decode closes its wire and gets its pages back."""
    handmade.prefill._timeout = 0.0
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    sending = handmade.prefill.send("r", np.array([4, 5]), 8)
    handmade.settle()
    assert "the write took longer than 0 s" in sending.reason
    assert receiving.state is RecvState.FAILED
    assert handmade.pages.available == 16
    assert _wire(handmade).writes[0].released
    wire = handmade.decode.link.wire
    assert isinstance(wire, HandWire)
    assert wire.closed


def test_a_write_that_goes_on_beside_a_late_one_keeps_its_pages(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode hears of the late one, once, before prefill has released the others and closed its wire."""
    tell, held = handmade.prefill.link.channel.tell, list[int]()

    def told(message: Message) -> None:
        tell(message)
        if isinstance(message, Ended):
            handmade.decode.step()
            assert not all(write.released for write in _wire(handmade).writes)
            held.append(handmade.decode.quarantined.size)

    monkeypatch.setattr(handmade.prefill.link.channel, "tell", told)
    late, other = (handmade.decode.expect(name, handmade.alloc(2), 8) for name in "ab")
    for name, pages in ("a", (1, 2)), ("b", (3, 4)):
        handmade.prefill.send(name, np.array(pages), 8)
    handmade.decode.step()
    handmade.prefill.step()
    handmade.prefill.step()
    handmade.prefill._timeout = 0.0
    handmade.prefill.step()
    assert held == [4]
    assert (late.state, other.state) == (RecvState.FAILED, RecvState.FAILED)
    handmade.settle()
    assert handmade.pages.available == 16


def test_a_late_write_takes_nothing_from_one_that_has_landed(handmade: Pair) -> None:
    """Its notification has arrived, and prefill may have called it done."""
    late, landed = (handmade.decode.expect(name, handmade.alloc(2), 8) for name in "ab")
    sendings = [handmade.prefill.send(name, np.array([1, 2]), 8) for name in "ab"]
    handmade.decode.step()
    handmade.prefill.step()
    handmade.prefill.step()
    wire = _wire(handmade)
    while not wire.writes[1].done:
        wire.move(1)
    handmade.prefill._torn(sendings[0], "the write failed")
    handmade.settle()
    assert (late.state, landed.state) == (RecvState.FAILED, RecvState.LANDED)
    assert handmade.pages.available == 14
    assert not handmade.decode.quarantined.size
