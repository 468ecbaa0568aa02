"""Copies carry the spans of the requests that asked for them: the real SDK, our own engine."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests.exporters.receiver import Receiver
from tests.pools.caching import P, group_of
from tests.pools.stored import cache_of

from hicache_dbg.exporters.fields import fields
from hicache_dbg.exporters.otel import OtelSink
from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.tracer.attach.requests import API, current_span
from hicache_dbg.tracer.events import Copied, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.sink import Sink

Span = Callable[[str], AbstractContextManager[trace.Span]]
TOKENS = np.arange(2 * P, dtype=np.int32)
LIMIT_S = 20.0


class Held(TransferEngine):
    """An engine that stops a load after its first layer until released."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def load(self, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        """Move layer after layer once released."""

        def held(layer: int) -> None:
            self.begun.set()
            assert self.go.wait(LIMIT_S)
            on_layer_done(layer)

        super().load(op, held)


@pytest.fixture
def span() -> Span:
    """Return a function that makes the span of a host's request current."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("host").start_as_current_span


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A collector."""
    receiver = Receiver()
    yield receiver
    receiver.close()


def two_readers(span: Span, *sinks: Sink, checksum: Checksum = Checksum.LOADS) -> list[str]:
    """Let two requests read by one load what a third wrote; return the trace ids of all."""
    ids = []

    def noted() -> None:
        ids.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

    engine = Held()
    settings = Settings(gate=Gate.ON, checksum=checksum)
    with (
        Runtime.start(settings, sinks=list(sinks)),
        HiCacheController(group_of(), engine=engine) as cache,
    ):
        with span("writer"):
            noted()
            cache.insert(TOKENS, cache.alloc_device(2))
        cache.flush()
        cache.free_device(cache.alloc_device(8))  # nothing is left on the device
        matches: list[Match] = []
        for name in ("first", "second"):
            with span(name):
                noted()
                matches.append(cache.match(TOKENS))
                cache.load_back(matches[-1])
            assert engine.begun.wait(LIMIT_S)
        engine.go.set()
        cache.flush()
        for match in matches:
            cache.unlock(match)
    return ids


@pytest.mark.parametrize("checksum", [Checksum.OFF, Checksum.LOADS])
def test_two_requests_that_share_a_load_are_both_named(span: Span, checksum: Checksum) -> None:
    """A load names the request that began it and those that joined while it was under way."""
    sink = MemorySink()
    writer, first, second = two_readers(span, sink, checksum=checksum)
    copies = sink.of(Copied)
    assert {copy.op for copy in copies} == {Op.BACKUP, Op.LOAD}
    for copy in copies:
        others = [trace_id for trace_id, _ in copy.shared_with]
        expected = (writer, []) if copy.op is Op.BACKUP else (first, [second])
        assert (copy.trace_id, others) == expected
        assert fields(copy)["TRACE_ID"] == copy.trace_id
        assert len(fields(copy)["SPAN_ID"]) == 16


def test_one_load_links_to_both_requests(
    span: Span, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The span of a load that two requests share has a link to each, in a trace of its own."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    sink = OtelSink(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint})
    writer, *readers = two_readers(span, sink)
    links = {
        name: {
            tuple(link.trace_id.hex() for link in copy.links)
            for copy in receiver.spans
            if copy.name == f"hicache.{name}"
        }
        for name in ("backup", "load")
    }
    assert links == {"backup": {(writer,)}, "load": {tuple(readers)}}
    assert not {copy.trace_id.hex() for copy in receiver.spans} & {writer, *readers}


def test_what_a_store_moves_is_for_whoever_asked(span: Span, tmp_path: Path) -> None:
    """Pages are stored for whoever inserted them, and fetched for whoever wants them."""
    sink, ids = MemorySink(), []
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]):
        for name in ("writer", "reader"):
            with cache_of(FileStore(tmp_path), timeout=LIMIT_S) as cache, span(name) as current:
                ids.append(f"{current.get_span_context().trace_id:032x}")
                if name == "writer":
                    cache.insert(TOKENS, cache.alloc_device(2))
                else:
                    assert cache.prefetch(TOKENS) == 2
    asked = {copy.op: copy.trace_id for copy in sink.of(Copied)}
    assert asked == dict(zip((Op.BACKUP, Op.STORE, Op.FETCH), (ids[0], *ids), strict=True))


def test_outside_a_span_there_is_nothing_to_name() -> None:
    """A host with OpenTelemetry but without an open span gets copies without ids."""
    sink = MemorySink()
    no_span = trace.NoOpTracer().start_as_current_span
    assert set(two_readers(no_span, sink)) == {"0" * 32}
    assert {(copy.trace_id, copy.span_id, copy.shared_with) for copy in sink.of(Copied)} == {
        ("", "", ())
    }


def test_a_host_without_opentelemetry_gets_none(
    span: Span, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the host has imported OpenTelemetry, nothing of it is used or imported."""
    monkeypatch.delitem(sys.modules, API)
    sink = MemorySink()
    with span("request"):
        assert current_span() is None
        two_readers(span, sink)
    assert API not in sys.modules
    assert {(copy.trace_id, copy.shared_with) for copy in sink.of(Copied)} == {("", ())}
