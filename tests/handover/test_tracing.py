"""What the tracer says of a handover: every tile accounted for, and a wrong one by page and layer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from tests.exporters.receiver import Receiver
from tests.handover.pair import (
    WAIT_S,
    HandWire,
    P,
    agree,
    arrived,
    hand_over,
    links,
    pair,
    tokens_of,
)
from tests.handover.test_contract import with_bf16_index
from tests.handover.watched import ON, by_role, traced
from tests.pools.caching import LAYERS, group_of, page_of

from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import HandoverError
from hicache_dbg.pools.handover.requests import Receiving, RecvState
from hicache_dbg.tracer.attach.hicache_handover_beside import Job
from hicache_dbg.tracer.attach.hicache_handover_receipts import Receipts
from hicache_dbg.tracer.attach.hicache_handover_sends import Sends
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Started, Stated, Topic
from hicache_dbg.tracer.settings import Checksum


def test_both_ends_of_a_handover_over_nixl_account_for_every_tile_and_agree() -> None:
    """One copy a pool and end, all tiles witnessed, the same trace, and a join without a finding."""
    with traced() as (sink, runtime), pair(by_hand=False, pump=True) as made:
        tokens, source = tokens_of(1, 3), np.array([7, 2, 9])
        made.computed(tokens, source)
        room = made.alloc(3)
        receiving = made.decode.expect("r", room, len(tokens))
        sending = made.prefill.send("r", source, len(tokens), ("a" * 32, "b" * 16))
        made.decode.wait(receiving, WAIT_S)
        made.prefill.wait(sending, WAIT_S)
        assert arrived(made.theirs, tokens, room)
        runtime.flush()
    copies = sink.of(Copied)
    assert sorted((copy.op, copy.pool) for copy in copies) == [
        (op, pool) for op in (Op.RECV, Op.SEND) for pool in ("dsa_index_k", "mla")
    ]
    for copy in copies:
        assert copy.tiles == copy.witnessed == 3 * LAYERS
        assert (copy.status, copy.trace_id, copy.span_id) == ("ok", "a" * 32, "b" * 16)
        assert copy.bytes == copy.item_bytes * LAYERS * 3
        assert copy.device_pages == tuple((source if copy.op is Op.SEND else room).tolist())
    assert [
        said.values for said in sink.of(Stated) if said.topic in {Topic.SENT, Topic.RECEIVED}
    ] == [("3", "complete")] * 2
    assert all(
        0 < said.began_ns <= said.time_ns
        for said in sink.of(Stated)
        if said.topic in {Topic.SENT, Topic.RECEIVED}
    )
    assert join(by_role(sink.events)) == []


@settings(max_examples=15, deadline=None)
@given(
    page=st.integers(0, 3),
    layer=st.integers(0, LAYERS - 1),
    pool=st.sampled_from(["mla", "dsa_index_k"]),
)
def test_a_byte_changed_on_the_way_is_named_by_pool_page_and_layer(
    page: int, layer: int, pool: str
) -> None:
    """Any tile of any request: the join says which, in the request's own pages."""
    with traced() as (sink, runtime), pair(by_hand=True) as made:

        def flip() -> None:
            wire = made.prefill.link.wire
            assert isinstance(wire, HandWire)
            wire.move_all()
            page_of(made.theirs, pool, layer, int(made.decode._granted[1].pages[page]))[5] ^= 1

        hand_over(made, 4, flip)
        runtime.flush()
    (found,) = join(by_role(sink.events))
    assert (found.cls, found.pool, found.layer) == (FaultClass.PD_CONTRACT, pool, layer)
    assert found.pages == (page,)


@pytest.mark.parametrize("checksum", [Checksum.OFF, Checksum.SAMPLE])
def test_tiles_that_are_not_looked_at_are_skipped_with_the_reason(checksum: Checksum) -> None:
    """And under a sample both ends look at the same pages."""
    chosen = replace(ON, checksum=checksum, sample=0.5)
    with traced(chosen) as (sink, runtime), pair(by_hand=True) as made:
        hand_over(made, 12)
        runtime.flush()
    reason = {Checksum.OFF: "off", Checksum.SAMPLE: "sampled_out"}[checksum]
    for copy in sink.of(Copied):
        assert copy.tiles == 12 * LAYERS
        assert copy.witnessed + copy.skipped[reason] == copy.tiles
    pages = {
        role: {
            said.page for said in sink.of(Stated) if said.topic is Topic.TILES and said.role == role
        }
        for role in ("prefill", "decode")
    }
    assert pages["prefill"] == pages["decode"]
    assert len(pages["decode"]) < 12


def test_counts_that_differ_are_a_finding_of_the_join() -> None:
    """Nothing was moved, every tile is skipped as failed, and both counts are named."""
    with traced() as (sink, runtime), pair(by_hand=True) as made:
        made.decode.expect("r", made.alloc(2), 12)
        made.prefill.send("r", np.array([1, 2, 3]), 12)
        made.settle()
        runtime.flush()
    assert {copy.op: copy.skipped for copy in sink.of(Copied)} == {
        Op.SEND: {"failed": 3 * LAYERS},
        Op.RECV: {"failed": 2 * LAYERS},
    }
    (found,) = join(by_role(sink.events))
    assert "prefill sent 3 pages (not taken over), decode took 2 pages" in found.message


def test_a_refused_contract_is_a_finding_a_pool_and_the_join_makes_the_same() -> None:
    """By field, with both values, read off the tensors."""
    with traced() as (sink, runtime):
        ours, theirs = group_of(), with_bf16_index()
        a, b, _ = links(ours, theirs, (HandWire(), HandWire()))
        with HiCacheController(ours):
            runtime.flush()
            prefill = list(sink.events)
        with HiCacheController(theirs):
            runtime.flush()
            decode = [event for event in sink.events if event not in prefill]
        assert all(agree(a, b))
        runtime.flush()
    live = [one for one in sink.of(Finding) if one.cls is FaultClass.PD_CONTRACT]
    said = [event for event in sink.of(Stated) if event.topic is Topic.CONTRACT]
    ends = [
        [e for e in events if isinstance(e, Started)] + [s for s in said if s.role == role]
        for events, role in ((prefill, "prefill"), (decode, "decode"))
    ]
    assert [one.pool for one in live] == ["dsa_index_k"]
    assert "index_k.page_bytes=528" in live[0].expected
    assert "index_k.page_bytes=1024" in live[0].got
    assert [one.pool for one in join(ends)] == ["dsa_index_k"]


def test_the_spans_of_both_ends_link_to_the_request_at_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One trace over both processes: decode learns prefill's span from the offer."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("host")
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    sinks = [OtelSink(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint})]
    with traced(more=sinks) as (_, runtime), pair(by_hand=True) as made:
        made.decode.expect("r", made.alloc(1), 4)
        with tracer.start_as_current_span("request") as span:
            made.prefill.send("r", np.array([1]), 4)
        made.settle()
        assert isinstance(made.prefill.link.wire, HandWire)
        made.prefill.link.wire.move_all()
        made.settle()
        runtime.flush()
    spans = receiver.spans
    receiver.close()
    request = span.get_span_context()
    assert sorted(one.name for one in spans) == ["hicache.recv"] * 2 + ["hicache.send"] * 2
    for one in spans:
        (link,) = one.links
        assert link.trace_id.hex() == f"{request.trace_id:032x}"
        assert link.span_id.hex() == f"{request.span_id:016x}"


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (Sends, "offered"),
        (Sends, "read"),
        (Sends, "sent"),
        (Receipts, "granted"),
        (Receipts, "landed"),
    ],
)
def test_a_failure_of_ours_accuses_neither_end(
    monkeypatch: pytest.MonkeyPatch, internal_errors: list[str], part: type, method: str
) -> None:
    """What an end does not state is unknown then, and the report says that it was blind."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    with traced() as (sink, runtime), pair(by_hand=True) as made:
        monkeypatch.setattr(part, method, fail)
        hand_over(made, 2)
        runtime.flush()
        monkeypatch.undo()
    assert internal_errors
    internal_errors.clear()
    assert join(by_role(sink.events)) == []
    assert Evidence.of(sink.events).unseen


def test_detaching_restores_the_very_function_objects() -> None:
    """Off means off."""
    from hicache_dbg.pools.handover.decode import DecodeEnd
    from hicache_dbg.pools.handover.link import Link
    from hicache_dbg.pools.handover.prefill import PrefillEnd

    names = [
        (Link, "agree"),
        *((PrefillEnd, name) for name in ("offer", "begin", "finish")),
        *((DecodeEnd, name) for name in ("landed", "failed")),
    ]
    before = [owner.__dict__[name] for owner, name in names]
    with traced():
        assert all(
            owner.__dict__[name] is not old
            for (owner, name), old in zip(names, before, strict=True)
        )
    assert [owner.__dict__[name] for owner, name in names] == before


def test_a_page_that_had_another_life_before_it_was_digested_is_skipped() -> None:
    """The others are compared all the same."""
    with traced() as (sink, runtime), pair(by_hand=True) as made:
        lives = iter((np.zeros(4, np.uint32), np.array([0, 1, 0, 1], np.uint32)))
        made.decode.generation = lambda _pages: next(lives)
        hand_over(made, 4, left=1)
        runtime.flush()
    for copy in sink.of(Copied):
        skipped = {"reused": 2 * LAYERS} if copy.op is Op.RECV else {}
        assert (copy.skipped, copy.tiles) == (skipped, 4 * LAYERS)
    tiles = {(s.role, s.page) for s in sink.of(Stated) if s.topic is Topic.TILES}
    assert tiles == {("prefill", page) for page in range(4)} | {("decode", at) for at in (0, 2)}
    assert join(by_role(sink.events)) == []


def test_a_request_given_up_as_it_lands_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode gives it up while the landing is being recorded: it was not taken over, and is not read."""
    landed = Receipts.landed

    def late(receipts: Receipts, end: DecodeEnd, receiving: Receiving) -> Job | None:
        job = landed(receipts, end, receiving)
        end.abort(receiving, "too late")
        return job

    monkeypatch.setattr(Receipts, "landed", late)
    with traced() as (sink, told), pair(by_hand=True) as made:
        made.decode.generation = made.pages.generation
        with pytest.raises(HandoverError, match="too late"):
            hand_over(made, 2)
        told.flush()
    said = [said.values for said in sink.of(Stated) if said.topic is Topic.RECEIVED]
    assert said == [("2", "not taken over")]
    assert join(by_role(sink.events)) == []
    assert [copy.tiles for copy in sink.of(Copied) if copy.op is Op.RECV] == [2 * LAYERS] * 2


def test_a_grant_while_another_request_lands_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's own thread may grant while the pump takes a landing: both use one dictionary."""
    over = Receiving.over
    with traced() as (_, told), pair(by_hand=True) as made:
        made.decode.generation = made.pages.generation
        under_way = told.attachment._receipts._under_way

        def meanwhile(one: Receiving) -> bool:
            under_way.pop(id(one), None)
            return one.state in {RecvState.LANDED, RecvState.FAILED}

        for name in ("r", "s"):
            made.prefill.send(name, np.arange(2), 2 * P)
            made.settle()
            made.decode.expect(name, made.alloc(2), 2 * P)
            monkeypatch.setattr(Receiving, "over", property(meanwhile))
        monkeypatch.setattr(Receiving, "over", over)
        assert len(under_way) == 1
