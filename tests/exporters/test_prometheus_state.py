"""Prometheus metrics of state: the tracer's own and the pools', read when scraped."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from tests.exporters.samples import copied, health
from tests.exporters.scrapes import PATH, samples, scrape, value

from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.tracer.events import Health
from hicache_dbg.tracer.sink import LookedUp, PoolPages


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


def test_a_clock_that_is_set_back_a_little_freezes_no_counter(
    registry: CollectorRegistry,
) -> None:
    """Which heartbeat is newer is told by the clock since boot, which nobody sets."""
    sink = PrometheusSink(registry)
    now = health().time_ns
    sink.emit([health(events=1000, boot_ns=1)])
    sink.emit([health(events=1500, boot_ns=2, time_ns=now - 300 * 10**9)])
    sink.emit([health(events=1400, boot_ns=1, time_ns=now + 1)])
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == 1500


def test_two_sessions_of_one_process_show_both_their_pools(registry: CollectorRegistry) -> None:
    """The end of one session takes its own pools away, not those of the other."""

    def pages(pool: str) -> PrometheusSink:
        state = [PoolPages(pool=pool, tier="host", state="free", pages=7)]
        return PrometheusSink(registry, pool_state=lambda: state)

    def shown(pool: str) -> float | None:
        labels = {"pool": pool, "tier": "host", "state": "free", "rank": "0"}
        return registry.get_sample_value("hicache_dbg_pool_pages", labels)

    first, second, same = pages("mla"), pages("index_k"), pages("index_k")
    same.watch(lambda: health(events=5))
    assert (shown("mla"), shown("index_k")) == (7, 7)
    second.close()
    first.close()
    assert (shown("mla"), shown("index_k")) == (None, 7)
    assert registry.get_sample_value("hicache_dbg_events_total", {"rank": "0"}) == 5


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
