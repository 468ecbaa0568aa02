"""Every field that a finding, a start, a heartbeat and a statement have, by name and in order."""

import msgspec
import pytest
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import PRIORITIES, fields
from hicache_dbg.exporters.journal_format import Values
from hicache_dbg.tracer.events import Event, Stated, Topic


def but_the_record(event: Event) -> dict[str, Values]:
    """Return an event's fields; its record, left out here, is the whole event."""
    found = fields(event)
    record = found.pop("HICACHE_RECORD")
    assert isinstance(record, str)
    assert msgspec.json.decode(record, type=Event) == event
    return found


def test_a_finding_has_its_class_place_values_and_advice() -> None:
    """Of all layers, or of one; by the requests that it harmed, in the span of its operation."""
    trace = {"trace_id": "a" * 32, "span_id": "b" * 16}
    event = finding(layer=0, slots="0..3", requests=("r1", "r2"), count=3, rank=2, **trace)
    assert list(but_the_record(event).items()) == [
        ("HICACHE_EVENT", "finding"),
        ("HICACHE_FINDING", "row_width"),
        ("HICACHE_POOL", "index_k"),
        ("HICACHE_OP", "backup"),
        ("HICACHE_COMPONENT", "key"),
        ("HICACHE_LAYER", "0"),
        ("HICACHE_PAGE", "0"),
        ("HICACHE_PAGES", "40"),
        ("HICACHE_SLOTS", "0..3"),
        ("HICACHE_EXPECTED", "256"),
        ("HICACHE_GOT", "132"),
        ("HICACHE_ADVICE", "size the mirror from the device tensor"),
        ("HICACHE_CHECK", "registration"),
        ("HICACHE_COUNT", "3"),
        ("HICACHE_REQUEST", ("r1", "r2")),
        ("TRACE_ID", "a" * 32),
        ("SPAN_ID", "b" * 16),
        ("HICACHE_RANK", "2"),
    ]
    assert fields(finding())["HICACHE_LAYER"] == "all"


def test_a_finding_about_no_page_has_the_field_of_none() -> None:
    """What is empty is left out, and how many pages there were is not."""
    found = fields(finding(pages=(), page_count=0, component="", requests=("r1",)))
    assert "HICACHE_PAGE" not in found
    assert "HICACHE_COMPONENT" not in found
    assert (found["HICACHE_PAGES"], found["HICACHE_REQUEST"]) == ("0", "r1")


def test_a_start_has_the_system_and_its_classes() -> None:
    """Several classes stand in one field, with commas."""
    event = started(
        classes_built=("A", "B"),
        classes_unbuilt=("C", "D"),
        unrecognised=("E", "F"),
        place="tp=1 pp=0",
        rank=1,
    )
    assert list(but_the_record(event).items()) == [
        ("HICACHE_EVENT", "started"),
        ("HICACHE_SYSTEM", "hicache_dbg.pools"),
        ("HICACHE_VERSION", "0.1.0"),
        ("HICACHE_CHECKSUM", "loads"),
        ("HICACHE_CLASSES_BUILT", "A,B"),
        ("HICACHE_CLASSES_UNBUILT", "C,D"),
        ("HICACHE_UNRECOGNISED", "E,F"),
        ("HICACHE_PLACE", "tp=1 pp=0"),
        ("HICACHE_RANK", "1"),
    ]


def test_a_heartbeat_has_the_totals() -> None:
    """Losses and errors of all places are added up; reasons are told if a tile was skipped so."""
    assert list(but_the_record(health(closing=True)).items()) == [
        ("HICACHE_EVENT", "health"),
        ("HICACHE_COPIES", "900"),
        ("HICACHE_VERIFIED", "500"),
        ("HICACHE_WITNESSED", "390"),
        ("HICACHE_MISMATCHED", "3"),
        ("HICACHE_SKIPPED", "7"),
        ("HICACHE_SKIP_REASON", ("off", "partial")),
        ("HICACHE_FINDINGS", "4"),
        ("HICACHE_DROPPED", "7"),
        ("HICACHE_ERRORS", "3"),
        ("HICACHE_CLOSING", "True"),
        ("HICACHE_RANK", "0"),
    ]
    assert fields(health())["HICACHE_CLOSING"] == "False"


def test_a_statement_has_its_topic_and_pool() -> None:
    """Its values are in the record alone."""
    event = Stated(time_ns=1, topic=Topic.TILES, values=("a", "b"), pool="mla+x", component="key")
    assert list(but_the_record(event).items()) == [
        ("HICACHE_EVENT", "stated"),
        ("HICACHE_TOPIC", "tiles"),
        ("HICACHE_POOL", ("mla+x", "mla", "x")),
        ("HICACHE_COMPONENT", "key"),
        ("HICACHE_RANK", "0"),
    ]
    assert PRIORITIES[Stated] == 7


@pytest.mark.parametrize("text", ["plain", "Grüße", "\x1b[2J", "😀\n"])
def test_a_record_is_text_that_a_reader_of_the_journal_gets_as_text(text: str) -> None:
    """What is printable is kept as it is; otherwise all but ASCII is escaped."""
    record = fields(finding(message=text))["HICACHE_RECORD"]
    assert isinstance(record, str)
    assert record.isprintable()
    assert (text in record) == text.isprintable()
    assert msgspec.json.decode(record, type=Event) == finding(message=text)


def test_a_copy_that_serves_one_request_names_it_as_text() -> None:
    """And one that serves none has no such field."""
    assert fields(copied(requests=("r1",)))["HICACHE_REQUEST"] == "r1"
    assert "HICACHE_REQUEST" not in fields(copied())
