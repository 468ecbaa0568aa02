"""Statements for a join: kept in recordings and the journal, and left out of other output."""

import json
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from tests.exporters.samples import copied, finding
from tests.tracer.checks.statements import tiles

from hicache_dbg.exporters.fields import MESSAGE_IDS, fields
from hicache_dbg.exporters.line import line
from hicache_dbg.exporters.pipeline import FirstOfPath
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import read, recordings_in

STATED = tiles("r7", 3, ["0a", "0b"], role="decode", rank=1)


def test_a_recording_gives_it_back(tmp_path: Path) -> None:
    """Every field comes back, beside other events."""
    events = copied(), STATED, finding()
    sink = RecordingSink(tmp_path, "run")
    sink.emit(events)
    sink.close()
    (path,) = recordings_in(tmp_path)
    assert tuple(read(path)) == events


def test_its_fields_hold_the_whole_event() -> None:
    """A reader of the journal rebuilds it exactly; it has its own message id."""
    named = fields(STATED)
    assert (named["HICACHE_EVENT"], named["HICACHE_TOPIC"], named["HICACHE_RANK"]) == (
        "stated",
        "tiles",
        "1",
    )
    assert json.loads(str(named["HICACHE_RECORD"]))["values"] == ["0a", "0b"]
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)


def test_its_line_is_no_path_and_no_finding() -> None:
    """Its line has no mark and is a single line."""
    text = line(STATED)
    assert text == (
        "hicache-dbg stated rank=1 topic=tiles role=decode request=r7 pool=kv values=0a,0b"
    )


def test_a_table_of_paths_has_none_of_it() -> None:
    """Thousands of statements would bury the findings."""
    with pytest.raises(structlog.DropEvent):
        FirstOfPath()(None, "", {"record": STATED})


def test_counters_do_not_count_it() -> None:
    """Statements are compared, not counted: no series changes."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry)
    before = {(s.name, *s.labels.values()): s.value for m in registry.collect() for s in m.samples}
    sink.emit([STATED])
    after = {(s.name, *s.labels.values()): s.value for m in registry.collect() for s in m.samples}
    sink.close()
    assert after == before
