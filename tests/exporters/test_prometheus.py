"""Prometheus metrics of events, through a real scrape."""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from itertools import product

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics import parser as openmetrics
from tests.exporters.samples import copied, finding, health, started
from tests.exporters.scrapes import PATH, samples, scrape, value
from tests.services import require

from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.events import DIRECTION, FaultClass, Op, Outcome, SkipReason, Tier
from hicache_dbg.tracer.sink import LookedUp, PoolPages

# The library gives its parser no types, and neither the writer.
openmetrics_text: Callable[[CollectorRegistry], bytes] = exposition.generate_latest
parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics.text_string_to_metric_families


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


def test_a_pool_that_is_made_again_has_one_geometry(registry: CollectorRegistry) -> None:
    """The sizes of the pool before it would read as ends that disagree; so would a place."""
    (mirror,) = started().mirrors
    key = msgspec.structs.replace(mirror.host.components[0], slot_bytes=256, page_bytes=16384)
    mended = msgspec.structs.replace(mirror.host, components=(key,))
    for host, place in ((mirror.host, "tp=0"), (mended, "tp=1")):
        made = msgspec.structs.replace(mirror, host=host)
        PrometheusSink(registry).emit([started(mirrors=(made,), place=place)])
    found = [
        (sample.labels["tier"], sample.labels["slot_bytes"])
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "hicache_dbg_pool_geometry_info"
    ]
    assert sorted(found) == [("device", "256"), ("host", "256")]
    was = {"rank": "0", "tp": "0", "pp": "", "dp": ""}
    assert registry.get_sample_value("hicache_dbg_rank_info", was) is None
    assert registry.get_sample_value("hicache_dbg_rank_info", {**was, "tp": "1"}) == 1


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


@pytest.mark.parametrize("trace_id", ["x" * 200, "\ud800"])
def test_a_trace_id_that_fits_no_exemplar_costs_nothing_else(
    registry: CollectorRegistry, trace_id: str
) -> None:
    """A long exemplar, or one without an encoding: the copy is counted without one."""
    PrometheusSink(registry).emit([copied(trace_id=trace_id)])
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 1
    assert b"hicache_dbg_copies_total" in openmetrics_text(registry)
