"""A request at decode lands or fails, once, whichever threads decide at the same time."""

import time

import numpy as np
import pytest
from tests.handover.pair import WAIT_S, HandWire, Pair, handmade, pair
from tests.handover.watched import traced
from tests.pools.caching import LAYERS

from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import HandoverError, PeerLost, Refused
from hicache_dbg.pools.handover.requests import Receiving, RecvState, SendState
from hicache_dbg.tracer.attach.hicache_handover_receipts import Receipts
from hicache_dbg.tracer.events import Copied, Op, Stated, Topic

__all__ = ["handmade"]


@pytest.mark.parametrize("how", ["aborted", "lost"])
def test_a_request_that_fails_while_its_offer_is_answered_lends_nothing(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its pages are free by then: prefill must not be told to write them."""
    grant = DecodeEnd.grant

    def late(end: DecodeEnd, receiving: Receiving) -> None:
        if how == "aborted":
            end.abort(receiving, "not wanted any more")
        else:
            end._lose("gone")
        grant(end, receiving)

    monkeypatch.setattr(DecodeEnd, "grant", late)
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    sending = handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    assert (receiving.state, sending.state) == (RecvState.FAILED, SendState.FAILED)
    assert handmade.pages.available == 16
    assert not handmade.decode.receiving
    assert not handmade.decode.quarantined.size
    assert not handmade.prefill.link.wire.writes  # type: ignore[attr-defined]


def test_a_request_that_is_about_to_fail_is_not_taken_for_landed(
    handmade: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its waiter nor its notification, which arrives meanwhile, admits it."""
    failed, raised = DecodeEnd.failed, list[str]()

    def slow(end: DecodeEnd, receiving: Receiving) -> None:
        with pytest.raises(Refused, match="late") as refused:
            end.wait(receiving, 0.0)
        raised.append(str(refused.value))
        handmade.prefill.link.wire.move_all()  # type: ignore[attr-defined]
        handmade.settle()
        failed(end, receiving)

    monkeypatch.setattr(DecodeEnd, "failed", slow)
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    handmade.decode.abort(receiving, "late")
    assert raised
    assert receiving.state is RecvState.FAILED
    assert handmade.pages.available == 16


def test_a_request_that_two_threads_fail_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds it decided."""
    failed, seen = Receipts.failed, list[Receiving]()

    def twice(receipts: Receipts, end: DecodeEnd, receiving: Receiving, *more: str) -> None:
        if not seen:
            seen.append(receiving)
            end.abort(receiving, "the other thread's reason")
        failed(receipts, end, receiving, *more)

    monkeypatch.setattr(Receipts, "failed", twice)
    with traced() as (sink, told), pair(by_hand=True) as made:
        receiving = made.decode.expect("r", made.alloc(2), 8)
        made.prefill.send("r", np.array([1, 2]), 8)
        made.settle()
        made.decode.abort(receiving, "late")
        told.flush()
        received = [said.values for said in sink.of(Stated) if said.topic is Topic.RECEIVED]
        copies = [copy.tiles for copy in sink.of(Copied) if copy.op is Op.RECV]
    assert received == [("2", "not taken over")]
    assert copies == [2 * LAYERS] * 2


def test_a_close_frees_no_page_that_is_still_written(handmade: Pair) -> None:
    """Prefill has not hung up in time: its pages stay in quarantine, and it learns of the close."""
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", np.array([1, 2]), 8)
    handmade.settle()
    handmade.decode.close(timeout=0.0)
    with pytest.raises(PeerLost):
        handmade.decode.wait(receiving, 0.0)
    assert handmade.decode.quarantined.tolist() == receiving.pages.tolist()
    assert handmade.pages.available == 14
    for _ in range(2):  # the abort, and the end of the stream
        handmade.prefill.step()
    assert handmade.prefill.lost


def test_a_close_frees_everything_once_prefill_has_hung_up() -> None:
    """It waits for that, and prefill does so at once."""
    with pair(by_hand=True, pump=True) as made:
        receiving = made.decode.expect("r", made.alloc(2), 8)
        sending = made.prefill.send("r", np.array([1, 2]), 8)
        wire = made.prefill.link.wire
        assert isinstance(wire, HandWire)
        until = time.monotonic() + WAIT_S
        while not wire.writes:
            assert time.monotonic() < until
        made.decode.close(timeout=WAIT_S)
        with pytest.raises(HandoverError):
            made.decode.wait(receiving, 0.0)
        with pytest.raises(HandoverError):
            made.prefill.wait(sending, WAIT_S)
        assert made.pages.available == 16
        assert wire.writes[0].released
