"""The Prometheus metrics of one registry, registered once however often a sink is made.

Names: ``hicache_dbg_`` prefix, underscores only, base units. Label sets are closed: pools come
from the start-up record, everything else from the event types. Never a page or a request.
"""

import threading
import weakref
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hicache_dbg.exporters.closed_sets import DURATION_BUCKETS_S
from hicache_dbg.exporters.encoding import whole
from hicache_dbg.exporters.prometheus_asked import Asked
from hicache_dbg.exporters.prometheus_multiprocess import PoolPagesGauge, is_multiprocess
from hicache_dbg.exporters.prometheus_self import SelfReader
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["PATH", "PLACE", "Metrics", "PoolPagesCollector", "child", "metrics_of"]

PATH = ("pool", "op", "src", "dst", "layout", "token_granular", "rank")
#: The rank, then the keys of the start-up record's place.
PLACE = ("rank", "tp", "pp", "dp")
GEOMETRY = (
    *("pool", "tier", "component", "class", "layout", "device", "dtype"),
    *("slot_bytes", "page_bytes", "slots_per_page", "pages", "layers", "rank"),
)

_PAGES = "hicache_dbg_pool_pages"
_PAGES_HELP = "Pages of a pool by tier and state, read when scraped"
_PAGES_LABELS = ("pool", "tier", "state", "rank")


T = TypeVar("T", Counter, Gauge, Histogram)


def child(parent: T, *values: object) -> T:
    """Return the child of ``parent`` with these labels, made safe to encode for a scrape."""
    return parent.labels(*(whole(str(value)) for value in values))


class PoolPagesCollector(Asked[list[PoolPages]], Collector):
    """Reads pool pages at scrape time, so that the hot path pays nothing.

    A reader that fails must not turn the whole scrape into an error: its pages are missing from
    that scrape and the failure is counted.
    """

    def __init__(self, failures: Counter) -> None:
        super().__init__(failures, "pool_state")

    def refresh(self) -> None:
        """Do nothing: the pages are read at scrape time."""

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples: registering must not read the pools."""
        return [GaugeMetricFamily(_PAGES, _PAGES_HELP, labels=_PAGES_LABELS)]

    def collect(self) -> Iterable[Metric]:
        """Return the family with one sample for each pool, tier and state."""
        family = GaugeMetricFamily(_PAGES, _PAGES_HELP, labels=_PAGES_LABELS)
        for rank, states in self.answers():
            for state in states:
                names = [whole(text) for text in (state.pool, state.tier, state.state)]
                family.add_metric([*names, rank], state.pages)
        return [family]


class Metrics:
    """Every metric, as parents without values; sinks bind the children.

    Raises:
        ValueError: another owner has registered one of the names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="hicache_dbg", registry=None)
        gauge = partial(Gauge, namespace="hicache_dbg", registry=None, multiprocess_mode="livesum")
        self.internal_errors = counter(
            "internal_errors", "Failures of the tracer itself, by place", ("place", "rank")
        )
        self.own = SelfReader(self.internal_errors)
        self.copies = counter("copies", "Operations, one a pool", PATH)
        self.copied_bytes = counter("copied_bytes", "Bytes that operations moved", PATH)
        self.duration = Histogram(
            "copy_duration_seconds",
            "How long an operation took",
            ("pool", "op", "layout", "rank"),
            namespace="hicache_dbg",
            registry=None,
            buckets=DURATION_BUCKETS_S,
        )
        self.tiles = counter(
            "tiles", "Tiles moved, by what is known of them", ("pool", "op", "result", "rank")
        )
        self.skipped = counter(
            "tiles_skipped",
            "Tiles moved that were not checked, by reason",
            ("pool", "op", "reason", "rank"),
        )
        self.findings = counter("findings", "Findings by fault class", ("class", "pool", "rank"))
        self.place = gauge(
            "rank_info",
            "Which of the attached system's ranks a rank is; empty where that has no such ranks",
            PLACE,
            # If two processes count under one rank, it is still one place: do not add.
            multiprocess_mode="livemax",
        )
        self.geometry = gauge(
            "pool_geometry_info", "Geometry of each end of a mirror, off its tensor", GEOMETRY
        )
        self.pinned = gauge(
            "pool_pinned_bytes",
            "Host memory of a pool that is pinned, off its tensors",
            ("pool", "rank"),
        )
        self.events = counter("events", "Events handed to the sinks", ("rank",))
        self.dropped = counter(
            "events_dropped", "Events that a sink lost, by reason", ("sink", "reason", "rank")
        )
        self.queue_depth = gauge("queue_depth", "Records waiting in the bus", ("rank",))
        self.sink_queue_depth = gauge(
            "sink_queue_depth", "Events waiting for a sink", ("sink", "rank")
        )
        self.sink_errors = counter("sink_errors", "Batches that a sink failed", ("sink", "rank"))
        self.overhead = counter(
            "overhead_seconds", "Time that the tracer cost the threads it traces", ("rank",)
        )
        self.pages = (
            PoolPagesGauge(gauge("pool_pages", _PAGES_HELP, _PAGES_LABELS), self.internal_errors)
            if is_multiprocess()
            else PoolPagesCollector(self.internal_errors)
        )
        #: Registered after the pages, because reading the pools updates it.
        self.lookups = counter(
            "lookup_pages",
            "Pages that readers asked for, by the tier that had them and what became of them",
            ("tier", "end", "rank"),
        )
        self._register(registry)

    def _register(self, registry: CollectorRegistry) -> None:
        """Register all or none, ``own`` first: collecting it updates the others."""
        done: list[Collector] = []
        try:
            for metric in (
                self.own,
                *(other for other in vars(self).values() if other is not self.own),
            ):
                registry.register(metric)
                done.append(metric)
        except ValueError:
            for metric in done:
                registry.unregister(metric)
            raise


_known: "weakref.WeakKeyDictionary[CollectorRegistry, Metrics]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def metrics_of(registry: CollectorRegistry) -> Metrics:
    """Return the metrics of ``registry``, registered at the first call.

    Raises:
        ValueError: another owner has registered one of the names.
    """
    with _lock:
        if registry not in _known:
            _known[registry] = Metrics(registry)
        return _known[registry]
