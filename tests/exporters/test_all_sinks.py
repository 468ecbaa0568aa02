"""The bus and every sink at once, each against its real service."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.exporters.journal import Journal
from tests.exporters.receiver import Receiver
from tests.exporters.samples import copied, finding, started

from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import read
from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Health
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.sink import Sink

COPIES = 10_000
COUNT = {"pool": "deepseek_v4_c128", "op": "backup", "src": "device", "dst": "host"}
PATH = {**COUNT, "layout": "page_first", "token_granular": "False", "rank": "0"}


def run(sinks: list[Sink]) -> Health:
    """Publish a start, copies and a finding among them; return the final health event."""
    bus = Bus(sinks, capacity=65536, errors=InternalErrors())
    bus.publish(started())
    for number in range(COPIES):
        bus.publish(copied(op_id=number + 1))
        if number == COPIES // 2:
            bus.publish(finding(op_id=0))
    assert bus.flush(60)
    bus.close(5)
    return bus.health()


@pytest.mark.service
def test_what_was_sent_arrives_everywhere(
    journal: Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ten thousand copies and a finding reach all five sinks at once, and nothing is lost."""
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    registry = CollectorRegistry()
    recording = RecordingSink(tmp_path, "run")
    last = run(
        [
            JournaldSink(journal.socket),
            OtelSink(),
            PrometheusSink(registry),
            recording,
            StderrSink(),
        ]
    )
    receiver.close()
    assert (last.dropped, last.errors) == ({}, {})
    assert len(journal.lines("-o", "cat", "HICACHE_EVENT=copied")) == COPIES
    assert len(journal.lines("-o", "cat", "HICACHE_EVENT=finding")) == 1
    recorded = [event.op_id for event in read(recording.path) if isinstance(event, Copied)]
    assert recorded == list(range(1, COPIES + 1))
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == COPIES
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == COPIES + 2
    assert len(receiver.spans) == COPIES
    printed = capsys.readouterr().err.splitlines()
    assert len([text for text in printed if text.startswith("[HICACHE_DBG] pool=")]) == 1
    assert len([text for text in printed if text.startswith("[HICACHE_DBG] finding=")]) == 1
