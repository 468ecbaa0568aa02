"""The Prometheus metrics of one registry, registered once however often a sink is made.

Names: ``hicache_dbg_`` prefix, underscores only, base units. Label sets are closed: pools come
from the start-up record, everything else from the event types. Never a page or a request.
"""

import threading
import weakref
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hicache_dbg.exporters.closed_sets import DURATION_BUCKETS_S
from hicache_dbg.exporters.encoding import whole
from hicache_dbg.exporters.prometheus_asked import Asked
from hicache_dbg.exporters.prometheus_multiprocess import PoolPagesGauge, is_multiprocess
from hicache_dbg.exporters.prometheus_self import SelfReader
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["PLACE", "Facts", "Metrics", "PoolPagesCollector", "child", "metrics_of"]

#: The rank, then the keys of the start-up record's place.
PLACE = ("rank", "tp", "pp", "dp")

_PREFIX = "hicache_dbg"
_PATH = ("pool", "op", "src", "dst", "layout", "token_granular", "rank")
#: A metric's meaning and its labels.
_About = tuple[str, tuple[str, ...]]

_COUNTERS: Mapping[str, _About] = MappingProxyType(
    {
        "copies": ("Operations, one a pool", _PATH),
        "copied_bytes": ("Bytes that operations moved", _PATH),
        "tiles": ("Tiles moved, by what is known of them", ("pool", "op", "result", "rank")),
        "tiles_skipped": (
            "Tiles moved that were not checked, by reason",
            ("pool", "op", "reason", "rank"),
        ),
        "findings": ("Findings by fault class", ("class", "pool", "rank")),
        "lookup_pages": (
            "Pages that readers asked for, by the tier that had them and what became of them",
            ("tier", "end", "rank"),
        ),
        "events": ("Events handed to the sinks", ("rank",)),
        "events_dropped": ("Events that a sink lost, by reason", ("sink", "reason", "rank")),
        "sink_errors": ("Batches that a sink failed", ("sink", "rank")),
        "internal_errors": ("Failures of the tracer itself, by place", ("place", "rank")),
        "overhead_seconds": ("Time that the tracer cost the threads it traces", ("rank",)),
    }
)
_GAUGES: Mapping[str, _About] = MappingProxyType(
    {
        "pool_pinned_bytes": (
            "Host memory of a pool that is pinned, off its tensors",
            ("pool", "rank"),
        ),
        "queue_depth": ("Records waiting in the bus", ("rank",)),
        "sink_queue_depth": ("Events waiting for a sink", ("sink", "rank")),
    }
)
#: Constants of 1 whose labels are the answer. Two processes of one rank are one thing: not added.
_FACTS: Mapping[str, _About] = MappingProxyType(
    {
        "rank_info": (
            "Which of the attached system's ranks a rank is; empty where that has no such ranks",
            PLACE,
        ),
        "pool_geometry_info": (
            "Geometry of each end of a mirror, off its tensor",
            (
                *("pool", "tier", "component", "class", "layout", "device", "dtype"),
                *("slot_bytes", "page_bytes", "slots_per_page", "pages", "layers", "rank"),
            ),
        ),
    }
)
_DURATION: _About = ("How long an operation took", ("pool", "op", "layout", "rank"))
_PAGES: _About = (
    "Pages of a pool by tier and state, read when scraped",
    ("pool", "tier", "state", "rank"),
)


T = TypeVar("T", Counter, Gauge, Histogram)


def child(parent: T, *values: object) -> T:
    """Return the child of ``parent`` with these labels, made safe to encode for a scrape."""
    return parent.labels(*(whole(str(value)) for value in values))


class Facts:
    """A constant gauge in which each thing has one label set: a new one replaces the old.

    Otherwise a pool that was created again, with other sizes, would be shown with both.
    """

    def __init__(self, gauge: Gauge) -> None:
        self.gauge = gauge
        self._told: dict[tuple[str, ...], tuple[str, ...]] = {}

    def tell(self, thing: tuple[str, ...], *values: object) -> None:
        """Set the labels of ``thing``, which are ``values``."""
        labels = tuple(whole(str(value)) for value in values)
        old = self._told.get(thing)
        self._told[thing] = labels
        self.gauge.labels(*labels).set(1)
        if old is None or old == labels:
            return
        if is_multiprocess():  # the library cannot remove there
            self.gauge.labels(*old).set(0)
        else:
            self.gauge.remove(*old)


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
        return [_pages_family()]

    def collect(self) -> Iterable[Metric]:
        """Return the family with one sample for each pool, tier and state."""
        family = _pages_family()
        pages = {
            (*map(whole, (state.pool, state.tier, state.state)), rank): state.pages
            for rank, states in self.answers()
            for state in states
        }
        for labels, count in pages.items():
            family.add_metric(labels, count)
        return [family]


def _pages_family() -> GaugeMetricFamily:
    meaning, labels = _PAGES
    return GaugeMetricFamily(f"{_PREFIX}_pool_pages", meaning, labels=labels)


class Metrics:
    """Every metric by its name, as parents without values; sinks bind the children.

    ``own`` and ``pages`` read state when they are collected; ``facts`` are constants.

    Raises:
        ValueError: another owner has registered one of the names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counters = {
            name: Counter(name, *about, namespace=_PREFIX, registry=None)
            for name, about in _COUNTERS.items()
        }
        self.gauges = {name: _gauge(name, about) for name, about in _GAUGES.items()}
        self.facts = {name: Facts(_gauge(name, about, "livemax")) for name, about in _FACTS.items()}
        self.duration = Histogram(
            "copy_duration_seconds",
            *_DURATION,
            namespace=_PREFIX,
            registry=None,
            buckets=DURATION_BUCKETS_S,
        )
        failures = self.counters["internal_errors"]
        self.own = SelfReader(failures)
        self.pages = (
            PoolPagesGauge(_gauge("pool_pages", _PAGES), failures)
            if is_multiprocess()
            else PoolPagesCollector(failures)
        )
        # Collecting the first two updates the others.
        _register(
            registry,
            [
                *(self.own, self.pages, self.duration),
                *self.counters.values(),
                *self.gauges.values(),
                *(fact.gauge for fact in self.facts.values()),
            ],
        )


def _gauge(name: str, about: _About, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
    return Gauge(name, *about, namespace=_PREFIX, registry=None, multiprocess_mode=mode)


def _register(registry: CollectorRegistry, metrics: Iterable[Collector]) -> None:
    """Register all or none, in order."""
    done: list[Collector] = []
    try:
        for metric in metrics:
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
