"""Every fact that a span, a finding and a loss has in OpenTelemetry, by name."""

import pytest
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import copied, finding, health

from hicache_dbg.exporters import otel
from hicache_dbg.exporters.otel import OtelSink

TRACE, SPAN = "0123456789abcdef0123456789abcdef", "0123456789abcdef"
PATH = {
    "hicache.pool": "deepseek_v4_c128",
    "hicache.op": "backup",
    "hicache.src": "device",
    "hicache.dst": "host",
    "hicache.layout": "page_first",
    "hicache.token_granular": False,
    "hicache.rank": 3,
}


def test_a_span_has_every_fact_of_its_copy(otel_sink: OtelSink, receiver: Receiver) -> None:
    """Its path, its sizes, and its tiles by outcome."""
    otel_sink.emit([copied(rank=3, verified=5, mismatched=2)])
    (span,) = receiver.spans
    assert attributes(span) == {
        **PATH,
        "hicache.h": 512,
        "hicache.d": 512,
        "hicache.slot_page": 256,
        "hicache.unit": "token",
        "hicache.pages": 2,
        "hicache.item_bytes": 16384,
        "hicache.dtype": "bfloat16",
        "hicache.layers": 4,
        "hicache.class": "C128HostPool",
        "hicache.io_backend": "kernel",
        "hicache.bytes": 131072,
        "hicache.verified": 5,
        "hicache.witnessed": 7,
        "hicache.mismatched": 2,
        "hicache.skipped": 1,
        "hicache.op_id": 901,
    }
    assert span.status.code == 0


def test_a_finding_has_every_fact_on_its_span_and_in_its_record(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """What is empty is left out; the record says of which rank it is."""
    facts = {
        "hicache.finding": "row_width",
        "hicache.pool": "index_k",
        "hicache.op": "backup",
        "hicache.component": "key",
        "hicache.layer": -1,
        "hicache.pages": [0, 1, 2, 7],
        "hicache.page_count": 40,
        "hicache.slots": "0..3",
        "hicache.expected": "256",
        "hicache.got": "132",
        "hicache.advice": "size the mirror from the device tensor",
        "hicache.check": "registration",
        "hicache.count": 4,
        "hicache.message": "the host has 132 bytes a token where the device has 256",
    }
    bare = {"slots": "", "component": "", "pages": (), "op_id": 0}
    otel_sink.emit(
        [copied(rank=3), finding(rank=3, slots="0..3", count=4), finding(rank=3, count=4, **bare)]
    )
    (span,) = receiver.spans
    (event,) = span.events
    assert attributes(event) == facts
    record, other = (attributes(record) for record in receiver.records)
    for one in (record, other):
        one.pop("event.name", None)
    assert record == {**facts, "hicache.rank": 3}
    left_out = {"hicache.slots", "hicache.component", "hicache.pages"}
    assert other == {**{k: v for k, v in facts.items() if k not in left_out}, "hicache.rank": 3}


def test_a_copy_that_failed_is_a_span_that_failed(otel_sink: OtelSink, receiver: Receiver) -> None:
    """With the status as its message, unless a finding says more."""
    otel_sink.emit([copied(status="failed", op_id=1), copied(status="failed"), finding()])
    alone, found = (span.status for span in receiver.spans)
    assert (alone.code, alone.message) == (2, "failed")
    assert found.message.startswith("row_width: ")


def test_a_span_links_to_every_request_that_its_copy_serves(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """The one that caused it first; ids that are all zeros are no request's."""
    others = (("1" * 32, "2" * 16), ("0" * 32, "3" * 16), ("4" * 32, "0" * 16))
    otel_sink.emit([copied(trace_id=TRACE, span_id=SPAN, shared_with=others)])
    (span,) = receiver.spans
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
        (TRACE, SPAN),
        others[0],
    ]


def test_the_oldest_spans_are_forgotten(
    otel_sink: OtelSink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding that comes too late stands in no span; a long run keeps a bounded number."""
    monkeypatch.setattr(otel, "SPANS_REMEMBERED", 2)
    otel_sink.emit([copied(op_id=number) for number in (0, 1, 2, 3)])
    otel_sink.emit([finding(op_id=number) for number in (1, 2, 3)])
    ids = {attributes(span)["hicache.op_id"]: span.span_id for span in receiver.spans}
    assert [record.span_id for record in receiver.records] == [b"", ids[2], ids[3]]


def test_losses_are_counted_by_rank_and_a_total_that_began_anew_adds_what_it_is(
    otel_sink: OtelSink, receiver: Receiver
) -> None:
    """Totals of several ranks do not mix, and a counter never falls."""
    for rank, total in ((0, 6), (1, 2), (0, 9), (1, 2), (0, 4)):
        otel_sink.emit([health(rank=rank, dropped={"journald/blocked": total, "bus/full": 1})])
    otel_sink.close()
    lost = {
        tuple(attributes(point)[f"hicache.{name}"] for name in ("rank", "sink", "reason")): point
        for point in receiver.metrics["hicache.event.lost"].sum.data_points
    }
    assert {key: point.as_int for key, point in lost.items()} == {
        (0, "journald", "blocked"): 13,
        (1, "journald", "blocked"): 2,
        (0, "bus", "full"): 1,
        (1, "bus", "full"): 1,
    }


def test_metrics_are_summed_by_path(otel_sink: OtelSink, receiver: Receiver) -> None:
    """Copies of one path are one series with all its attributes; another rank's is another."""
    otel_sink.emit(
        [copied(rank=3, verified=1), copied(rank=3, mismatched=4), copied(rank=4, bytes=1)]
    )
    otel_sink.close()
    moved = receiver.metrics["hicache.copy.io"].sum.data_points
    assert [(attributes(point), point.as_int) for point in moved] == [
        (PATH, 2 * 131072),
        ({**PATH, "hicache.rank": 4}, 1),
    ]
    tiles = receiver.metrics["hicache.tile.count"].sum.data_points
    counted = {
        (attributes(point)["hicache.rank"], attributes(point)["hicache.result"]): point.as_int
        for point in tiles
    }
    assert {result: count for (rank, result), count in counted.items() if rank == 3} == {
        "verified": 1,
        "witnessed": 14,
        "mismatched": 4,
        "skipped": 2,
    }
    assert all(PATH.items() - {("hicache.rank", 3)} <= attributes(p).items() for p in tiles)
