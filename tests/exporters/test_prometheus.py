"""Prometheus metrics, through a real scrape."""

import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.exporters.samples import copied, finding, health, started
from tests.services import require

from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.prometheus_port import Port
from hicache_dbg.tracer.events import DIRECTION, FaultClass, Health, Op, Outcome, SkipReason, Tier
from hicache_dbg.tracer.sink import LookedUp, PoolPages, SinkError

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

# The library gives its parsers no types.
parse_text: Callable[[str], Iterable[Metric]] = text_string_to_metric_families
parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families

PATH = {
    "pool": "deepseek_v4_c128",
    "op": "backup",
    "src": "device",
    "dst": "host",
    "layout": "page_first",
    "token_granular": "False",
    "rank": "0",
}


@pytest.fixture
def serve(registry: CollectorRegistry, port: int) -> Iterator[Callable[..., PrometheusSink]]:
    """Return a function that makes sinks serving on the port; closed after the test."""
    sinks: list[PrometheusSink] = []

    def make(**options: Any) -> PrometheusSink:
        sinks.append(PrometheusSink(registry, port=port, address="127.0.0.1", **options))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()


def scrape(port: int, accept: str = "text/plain") -> str:
    """Return the text of a scrape."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        text: str = response.read().decode()
    return text


def samples(text: str) -> Samples:
    """Return each sample of a scrape by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the value of one sample."""
    return found["hicache_dbg_" + name, frozenset(labels.items())]


def test_a_scrape_has_what_the_copies_did(serve: Callable[..., PrometheusSink], port: int) -> None:
    """Copies, bytes, durations, tiles and reasons arrive over HTTP with their labels."""
    sink = serve()
    sink.emit([copied(), copied(skipped={"off": 3}), copied(op=Op.LOAD, src=Tier.HOST)])
    found = samples(scrape(port))
    assert value(found, "copies_total", **PATH) == 2
    assert value(found, "copied_bytes_total", **PATH) == 2 * 131072
    tiles = {"pool": "deepseek_v4_c128", "op": "backup", "rank": "0"}
    assert value(found, "tiles_total", result="witnessed", **tiles) == 14
    assert value(found, "tiles_total", result="skipped", **tiles) == 4
    assert value(found, "tiles_total", result="mismatched", **tiles) == 0
    assert value(found, "tiles_skipped_total", reason="off", **tiles) == 3
    assert value(found, "tiles_skipped_total", reason="partial", **tiles) == 1
    duration = {"pool": "deepseek_v4_c128", "op": "backup", "layout": "page_first", "rank": "0"}
    assert value(found, "copy_duration_seconds_sum", **duration) == pytest.approx(501e-6)
    assert value(found, "copy_duration_seconds_bucket", le="0.0003", **duration) == 2
    assert value(found, "copy_duration_seconds_bucket", le="0.0001", **duration) == 0


def test_every_label_set_of_a_pool_is_there_at_zero_before_its_first_copy(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """After the start record a scrape has each op, branch, outcome, reason and class at 0."""
    serve().emit([started()])
    found = samples(scrape(port))
    pool = {"pool": "index_k", "rank": "0"}
    for op, granular in product(Op, (False, True)):
        src, dst = DIRECTION[op]
        path = {"op": op, "src": src, "dst": dst, "layout": "page_first", **pool}
        assert value(found, "copies_total", token_granular=str(granular), **path) == 0
        assert value(found, "copied_bytes_total", token_granular=str(granular), **path) == 0
    for op, result in product(Op, Outcome):
        assert value(found, "tiles_total", op=op, result=result, **pool) == 0
    for op, reason in product(Op, SkipReason):
        assert value(found, "tiles_skipped_total", op=op, reason=reason, **pool) == 0
    for fault in FaultClass:
        assert value(found, "findings_total", **{"class": fault}, **pool) == 0


def test_what_needs_no_pool_is_there_at_zero_from_the_start(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """Before any event a scrape has each class, sink and loss reason at 0."""
    serve(rank=3)
    found = samples(scrape(port))
    for fault in FaultClass:
        assert value(found, "findings_total", pool="", rank="3", **{"class": fault}) == 0
    assert value(found, "events_dropped_total", sink="bus", reason="queue_full", rank="3") == 0
    assert value(found, "events_dropped_total", sink="journald", reason="blocked", rank="3") == 0
    assert value(found, "sink_errors_total", sink="otel", rank="3") == 0
    assert value(found, "overhead_seconds_total", rank="3") == 0
    assert value(found, "events_total", rank="3") == 0


def test_findings_count_what_was_collapsed_into_them(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A finding that stands for a thousand counts a thousand."""
    serve().emit([finding(), finding(count=999)])
    found = samples(scrape(port))
    labels = {"class": "row_width", "pool": "index_k", "rank": "0"}
    assert value(found, "findings_total", **labels) == 1000


def test_health_totals_become_counters(serve: Callable[..., PrometheusSink], port: int) -> None:
    """Counters advance by the growth of a heartbeat's totals, and never decrease."""
    sink = serve()
    sink.emit([health(), health(events=1100, dropped={"journald/blocked": 8}, overhead_s=0.5)])
    sink.emit([health(events=5, errors={"sink/otel": 3}, overhead_s=0.5)])
    found = samples(scrape(port))
    assert value(found, "events_total", rank="0") == 1105
    assert value(found, "events_dropped_total", sink="bus", reason="queue_full", rank="0") == 1
    assert value(found, "sink_errors_total", sink="otel", rank="0") == 3
    assert value(found, "internal_errors_total", place="probe", rank="0") == 1
    assert value(found, "overhead_seconds_total", rank="0") == 0.5
    assert value(found, "queue_depth", rank="0") == 17


def test_a_source_that_began_anew_never_takes_from_a_counter(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A total that falls from 100 to 5 adds 5: the source was restarted."""
    serve().emit([health(events=100), health(events=5)])
    assert value(samples(scrape(port)), "events_total", rank="0") == 105


def test_a_forked_childs_totals_begin_at_nothing(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """The child's bus counts from zero; none of its totals are the parent's."""
    sink = serve()
    sink.emit([health(events=100, dropped={"journald/blocked": 4})])
    sink.let_go()  # as in the child
    sink.emit([health(events=150, dropped={"journald/blocked": 6})])
    found = samples(scrape(port))
    assert value(found, "events_total", rank="0") == 250
    lost = {"sink": "journald", "reason": "blocked", "rank": "0"}
    assert value(found, "events_dropped_total", **lost) == 10


def test_the_tracers_own_state_is_read_when_scraped(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A scrape reads losses, queues and costs directly, without waiting for a heartbeat."""
    now = health(queues={"journald": 3})
    sink = serve()
    sink.watch(lambda: now)
    lost = {"sink": "journald", "reason": "blocked", "rank": "0"}
    found = samples(scrape(port))
    assert value(found, "events_dropped_total", **lost) == 6
    assert value(found, "events_total", rank="0") == 1000
    assert value(found, "sink_queue_depth", sink="journald", rank="0") == 3
    now = health(dropped={"journald/blocked": 8}, queues={"journald": 0})
    found = samples(scrape(port))
    assert value(found, "events_dropped_total", **lost) == 8
    assert value(found, "sink_queue_depth", sink="journald", rank="0") == 0
    assert value(found, "overhead_seconds_total", rank="0") == 0.125


def test_a_heartbeat_older_than_the_last_scrape_adds_nothing(registry: CollectorRegistry) -> None:
    """A delayed heartbeat is not taken for a restarted source."""
    sink = PrometheusSink(registry)
    sink.watch(lambda: health(events=1000))
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == 1000
    sink.emit([health(events=900, time_ns=health().time_ns - 1)])
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == 1000


def test_a_clock_that_is_set_back_freezes_no_counter(registry: CollectorRegistry) -> None:
    """After the clock is set back an hour, a heartbeat is counted as before."""
    sink = PrometheusSink(registry)
    sink.emit([health(events=1000)])
    sink.emit([health(events=1500, time_ns=health().time_ns - 3600 * 10**9)])
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == 1500


def test_a_state_that_cannot_be_read_does_not_break_the_scrape(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A failing reader is counted, and the rest of the scrape is complete."""

    def fail() -> Health:
        raise OSError("gone")

    sink = serve()
    sink.watch(fail)
    sink.emit([copied()])
    found = samples(scrape(port))
    assert value(found, "copies_total", **PATH) == 1
    assert value(found, "internal_errors_total", place="self_state", rank="0") == 1


def test_pinned_bytes_are_those_of_the_host_end(registry: CollectorRegistry) -> None:
    """A pool reports the pinned memory of its host tensors, and 0 if they are not pinned."""
    mirror = started().mirrors[0]
    loose = msgspec.structs.replace(mirror.host, pinned=False)
    sink = PrometheusSink(registry)
    labels = {"pool": "index_k", "rank": "0"}
    for host, expected in ((mirror.host, 132 * 64 * 128 * 4), (loose, 0)):
        sink.emit([started(mirrors=(msgspec.structs.replace(mirror, host=host),))])
        assert registry.get_sample_value("hicache_dbg_pool_pinned_bytes", labels) == expected


@pytest.mark.parametrize(
    ("place", "tp", "pp", "dp"), [("tp=1 pp=0 dp=3", "1", "0", "3"), ("", "", "", "")]
)
def test_a_rank_tells_its_place_before_it_has_copied_anything(
    registry: CollectorRegistry, place: str, tp: str, pp: str, dp: str
) -> None:
    """The ranks of the attached system are labels of a constant, from the start record on."""
    sink = PrometheusSink(registry)
    for mirrors in ((), started().mirrors):  # a second record, of pools that came later
        sink.emit([started(rank=7, place=place, mirrors=mirrors)])
        labels = {"rank": "7", "tp": tp, "pp": pp, "dp": dp}
        assert registry.get_sample_value("hicache_dbg_rank_info", labels) == 1


def test_both_ends_of_a_mirror_are_told_with_their_geometry(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """The geometry of both ends is read off the tensors and exported side by side."""
    serve().emit([started()])
    ends = {
        labels["tier"]: (labels["slot_bytes"], labels["page_bytes"], labels["class"])
        for labels in (
            dict(labels)
            for name, labels in samples(scrape(port))
            if name == "hicache_dbg_pool_geometry_info"
        )
    }
    assert ends == {
        "device": ("256", "16384", "IndexKDevicePool"),
        "host": ("132", "8448", "IndexKHostPool"),
    }


def test_pool_pages_are_read_when_scraped(serve: Callable[..., PrometheusSink], port: int) -> None:
    """Pages by state are those at the time of the scrape; registering reads nothing."""
    reads: list[int] = []

    def pages() -> list[PoolPages]:
        reads.append(1)
        return [PoolPages(pool="index_k", tier="host", state="free", pages=len(reads))]

    serve(pool_state=pages)
    assert not reads
    labels = {"pool": "index_k", "tier": "host", "state": "free", "rank": "0"}
    assert [value(samples(scrape(port)), "pool_pages", **labels) for _ in range(2)] == [1, 2]


def test_lookups_are_read_when_scraped_and_never_fall(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """Lookup results are counters: at 0 from the start, and up to date in the scrape itself."""
    totals = iter([0, 7, 9, 2])
    pages = PoolPages(pool="index_k", tier="host", state="free", pages=1)
    serve(pool_state=lambda: [pages, LookedUp(tier="host", end="no_room", pages=next(totals))])
    labels = {"tier": "host", "end": "no_room", "rank": "0"}
    seen = [value(samples(scrape(port)), "lookup_pages_total", **labels) for _ in range(4)]
    assert seen == [0, 7, 9, 11]


def test_a_pool_that_cannot_be_read_does_not_break_the_scrape(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A reader that raises loses its own gauge only; the scrape works and the failure is counted."""

    def broken() -> Iterable[PoolPages]:
        raise NotImplementedError("a sidecar pool has no pages of its own")

    serve(pool_state=broken)
    scrape(port)
    found = samples(scrape(port))
    assert value(found, "internal_errors_total", place="pool_state", rank="0") >= 1
    assert not any(name == "hicache_dbg_pool_pages" for name, _ in found)


def test_a_second_sink_on_one_registry_goes_on_counting(
    registry: CollectorRegistry, serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A second sink neither fails nor resets: the counters belong to the registry."""
    first = PrometheusSink(registry)
    first.emit([copied()])
    first.close()
    serve().emit([copied()])
    assert value(samples(scrape(port)), "copies_total", **PATH) == 2


def test_a_port_in_use_is_said_once_and_costs_no_count(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """With the port taken the sink keeps counting; one log line names the port, and a failure is counted."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        sink = PrometheusSink(registry, port=taken, address="127.0.0.1")
        with pytest.raises(SinkError) as caught:
            sink.emit([copied()])
        sink.emit([copied()])
        sink.close()
    assert caught.value.lost == 0
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"hicache-dbg: metrics are not served on 127.0.0.1:{taken}: Address already in use"
    ]
    assert len(sink.problems) == 1


def test_a_rank_beyond_the_last_port_counts_unserved(registry: CollectorRegistry) -> None:
    """Rank 9 of a server with base port 65530 has no port: this is logged, and everything is counted."""
    sink = PrometheusSink(registry, port=65539, address="127.0.0.1")
    assert len(sink.problems) == 1
    assert "127.0.0.1:65539" in sink.problems[0]
    assert "65535" in sink.problems[0]
    with pytest.raises(SinkError, match="65539") as caught:
        sink.emit([copied()])
    assert caught.value.lost == 0
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 1


def test_a_port_that_becomes_free_is_served(registry: CollectorRegistry) -> None:
    """A taken port is retried once immediately, then every five seconds, until it can be served."""
    now = [100.0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        port = Port("127.0.0.1", number, lambda: registry, clock=lambda: now[0])
        assert [port.open() for _ in range(4)] == [False, False, True, True]
    now[0] += 4.9
    assert port.open()
    with pytest.raises(OSError, match="refused"):
        scrape(number)
    now[0] += 0.2
    assert port.open()
    scrape(number)
    port.close()


def test_names_that_another_owner_registered_do_not_stop_the_host(
    registry: CollectorRegistry, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If our names are taken, the sink keeps and serves its own registry, and says so."""
    Counter("hicache_dbg_findings", "another's", registry=registry)
    sink = PrometheusSink(registry, port=port, address="127.0.0.1")
    sink.emit([copied()])
    assert value(samples(scrape(port)), "copies_total", **PATH) == 1
    sink.close()
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) is None
    assert "Duplicated timeseries" in caplog.text


def test_durations_carry_the_trace_as_an_exemplar(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """In OpenMetrics a duration's bucket names the trace of a copy that fell into it."""
    serve().emit([copied(trace_id="ab" * 16, span_id="cd" * 8)])
    text = scrape(port, "application/openmetrics-text; version=1.0.0")
    exemplars = [
        sample.exemplar
        for family in parse_openmetrics(text)
        for sample in family.samples
        if sample.exemplar
    ]
    assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": "ab" * 16}]
    assert exemplars[0].value == pytest.approx(250.5e-6)


def test_labels_are_closed(registry: CollectorRegistry) -> None:
    """Copies of many pages and requests create no more series than copies of one."""
    sink = PrometheusSink(registry)
    sink.emit([started(), copied(pool="index_k"), finding()])
    before = sum(len(family.samples) for family in registry.collect())
    sink.emit(
        [
            copied(pool="index_k", op_id=n, host_pages=(n,), trace_id=f"{n + 1:032x}", h=n)
            for n in range(100)
        ]
    )
    sink.emit([finding(pages=(n,), got=str(n), layer=n) for n in range(100)])
    assert sum(len(family.samples) for family in registry.collect()) == before


@pytest.mark.service
def test_promtool_finds_nothing_to_say(serve: Callable[..., PrometheusSink], port: int) -> None:
    """Names and help texts pass Prometheus's own linter."""
    require(shutil.which("promtool"), "promtool is not installed")
    state = [
        PoolPages(pool="index_k", tier="host", state="free", pages=3),
        LookedUp(tier="storage", end="missing", pages=2),
    ]
    serve(pool_state=lambda: state).emit([started(), copied(), finding(), health()])
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=scrape(port), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_closes_without_the_servers_thread(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """The serving thread exists only in the parent: a child that joined it would hang."""
    sink = serve()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        signal.alarm(5)
        sink.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").status == 200


def test_a_trace_id_that_fits_no_exemplar_costs_nothing_else(registry: CollectorRegistry) -> None:
    """The library refuses long exemplars: the copy is counted without one."""
    PrometheusSink(registry).emit([copied(trace_id="x" * 200)])
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 1
