"""Untrusted text: in no sink can it forge a line, move the cursor or lose other events."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import fields
from hicache_dbg.exporters.journal_format import encode_entry
from hicache_dbg.exporters.line import line, printable
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.tracer.events import Finding
from hicache_dbg.tracer.settings import Lines
from hicache_dbg.tracer.sink import PoolPages

#: What a client may send as its request's id: it comes out of ``json.loads`` like this.
HALF = "r\ud800"
FORGED = "r\n[HICACHE_DBG] finding=none\x1b[2J\x9b1A\u202edesrever\x00"

TEXTS: dict[str, Any] = {"half of a pair": HALF, "a forged line": FORGED}
poisoned = pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))


def poison(text: str) -> Finding:
    """Return a finding with ``text`` in every text field."""
    return finding(message=text, expected=text, got=text, advice=text, pool=text, slots=text)


@given(text=st.text(st.characters(codec=None), max_size=40) | st.sampled_from([HALF, FORGED]))
def test_a_line_is_one_line_of_visible_characters(text: str) -> None:
    """Any stream accepts the line, and a terminal shows it."""
    for told in (line(poison(text)), line(started(place=text)), printable(text)):
        told.encode()
        assert len(told.splitlines()) <= 1
        assert not [char for char in told if char != " " and not char.isprintable()]


def test_plain_text_stays_as_it_is() -> None:
    """Letters of any alphabet are kept."""
    assert printable("seite 7 größer als 頁  8") == "seite 7 größer als 頁 8"


def test_a_text_of_any_length_costs_no_event(tmp_path: Path) -> None:
    """Each text of an event that no reader would take is cut, and says how long it was."""
    sink = RecordingSink(tmp_path, "run")
    sink.emit([copied(op_id=1), finding(message="m" * (17 << 20)), copied(op_id=2)])
    sink.close()
    (path,) = recordings_in(tmp_path)
    assert path.stat().st_size < 10_000
    first, found, last = read(path)
    assert isinstance(found, Finding)
    assert found.message == "m" * 1000 + f"... ({17 << 20} characters)"
    assert (first, last) == (copied(op_id=1), copied(op_id=2))


@poisoned
def test_a_recording_keeps_it_and_what_travels_with_it(tmp_path: Path, text: str) -> None:
    """The batch is complete and readable."""
    sink = RecordingSink(tmp_path, "run")
    sink.emit([copied(op_id=1), poison(text), copied(op_id=2)])
    sink.close()
    kept = list(read(recordings_in(tmp_path)[0]))
    assert [type(event).__name__ for event in kept] == ["Copied", "Finding", "Copied"]
    assert isinstance(kept[1], Finding)
    assert kept[1].message == text.encode(errors="backslashreplace").decode()


@poisoned
def test_a_journal_entry_is_whole(text: str) -> None:
    """All fields are there, and none of them starts another."""
    entry = encode_entry({"MESSAGE": line(poison(text)), **fields(poison(text))})
    assert b"\n[HICACHE_DBG]" not in entry.split(b"HICACHE_EVENT=")[0]
    assert b"HICACHE_FINDING=row_width\n" in entry


@poisoned
def test_a_stream_that_takes_only_what_has_an_encoding_takes_it(text: str) -> None:
    """Nothing of the batch is lost."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    StderrSink(Lines.ALL, stream=stream).emit([copied(), poison(text), copied()])
    stream.seek(0)
    assert len(stream.read().splitlines()) == 3


@poisoned
def test_a_scrape_is_whole(text: str) -> None:
    """The name of one pool or place does not cost the host all its metrics."""
    registry = CollectorRegistry()
    pages = [PoolPages(pool=text, tier=text, state=text, pages=1)]
    sink = PrometheusSink(registry, pool_state=lambda: pages)
    lost = health(errors={text: 1, f"sink/{text}": 2}, dropped={f"{text}/{text}": 3})
    sink.emit([started(), copied(pool=text), poison(text), lost])
    scraped = generate_latest(registry).decode()
    assert scraped.count("\nhicache_dbg_copies_total{") > 0
    assert "\nhicache_dbg_pool_pages{" in scraped


@poisoned
def test_spans_and_records_are_exported(
    receiver: Receiver, environ: dict[str, str], text: str
) -> None:
    """The event arrives, and so does the rest of its batch."""
    from hicache_dbg.exporters.otel import OtelSink

    sink = OtelSink(environ=environ)
    odd = copied(op_id=6, pool=text, layout=text, dtype=text, cls=text, io_backend=text, unit=text)
    sink.emit([copied(op_id=5), poison(text), odd, health(dropped={f"{text}/{text}": 1})])
    sink.close()
    assert [attributes(span)["hicache.op_id"] for span in receiver.spans] == [5, 6]
    assert len(receiver.records) == 2
    told = attributes(receiver.spans[1])
    kept = text.encode(errors="backslashreplace").decode()
    for name in ("pool", "layout", "dtype", "class", "io_backend", "unit"):
        assert told[f"hicache.{name}"] == kept
    (lost,) = receiver.metrics["hicache.event.lost"].sum.data_points
    assert attributes(lost)["hicache.sink"] == kept.partition("/")[0]
