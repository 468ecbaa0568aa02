"""Events as Prometheus metrics: children bound once, every closed label set at 0 from the start.

A missing series reads as "no data", and "0 mismatches" says little without the share that was
checked. So a pool's tiles appear with all four outcomes and all reasons as soon as the pool is
known.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from hicache_dbg.exporters.closed_sets import LOSS_REASONS
from hicache_dbg.exporters.forking import in_children, unforked
from hicache_dbg.exporters.prometheus_dead import Claim
from hicache_dbg.exporters.prometheus_metrics import PLACE, Metrics, child, metrics_of
from hicache_dbg.exporters.prometheus_multiprocess import is_multiprocess, shared_registry
from hicache_dbg.exporters.prometheus_port import Port
from hicache_dbg.exporters.prometheus_room import Room
from hicache_dbg.tracer.events import (
    DIRECTION,
    Copied,
    EndInfo,
    Event,
    FaultClass,
    Finding,
    Health,
    Op,
    Outcome,
    SkipReason,
    Started,
)
from hicache_dbg.tracer.sink import Pace, PoolPages, PoolStateReader, SinkError

__all__ = ["PrometheusSink"]

#: The library limits names and values of an exemplar to 128 characters together.
LONGEST_EXEMPLAR = 128 - len("trace_id")

#: Events counted before a fork may happen again; takes a third of a millisecond.
AT_ONCE = 64
#: Longest time a heartbeat can wait for its sink.
LONGEST_WAIT_NS = 600 * 10**9

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Path:
    """The bound children of one path."""

    copies: Counter
    copied_bytes: Counter
    duration: Histogram


class PrometheusSink:
    """Counts events in ``registry`` and, if ``port`` is not 0, serves it over HTTP.

    Under ``PROMETHEUS_MULTIPROC_DIR`` the port serves the sum of all processes. A port in use, or
    names registered by another owner, are degraded states: they are logged once and kept in
    :attr:`problems`, and the host carries on. The port is retried every few seconds, and each
    failed attempt counts as one failure of this sink, so that the other sinks report it.

    Args:
        registry: where the metrics live; by default the process's own.
        port: TCP port to serve on; 0 serves nothing, for a host that serves the registry itself.
        address: address to bind; the default answers scrapes from other machines.
        pool_state: read at each scrape for the pages of each pool by state, and for lookup
            outcomes.
        rank: the rank whose label sets are created at once.
    """

    name = "prometheus"

    #: Nobody scrapes more often, and each time this thread wakes the host may wait for the GIL.
    pace = Pace(gather_s=0.2)

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        port: int = 0,
        address: str = "0.0.0.0",  # noqa: S104 - a scraper is another machine, as a rule
        pool_state: PoolStateReader | None = None,
        rank: int = 0,
    ) -> None:
        self.problems: list[str] = []
        self._rank = rank
        self._registry, self._metrics = self._registered(registry)
        self._counters, self._gauges = self._metrics.counters, self._metrics.gauges
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}
        self._latest: dict[int, int] = {}
        self._lock = threading.Lock()
        in_children(self)
        self._path = cache(self._bind_path)
        self._tiles = cache(self._bind_tiles)
        self._skipped = cache(self._bind_skipped)
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Copied: self._copied,
            Finding: self._finding,
            Started: self._started,
            Health: self._health,
        }
        self._room = Room(_folder()) if is_multiprocess() else None
        self._make_room()
        self._claim = Claim(_folder()) if is_multiprocess() else None
        self._create_known()
        self._metrics.pages.read(self, rank, pool_state and partial(self._read_pools, pool_state))
        self._port = Port(address, port, self._scraped) if port else None
        if self._port is not None and not self._port.open():
            self._say(self._port.trouble)

    def watch(self, health: Callable[[], Health]) -> None:
        """Read the tracer's state through ``health`` at each scrape, not only at each heartbeat."""
        self._metrics.own.read(self, self._rank, lambda: self._health(health()))

    def emit(self, events: Sequence[Event]) -> None:
        """Count ``events``.

        A :class:`SinkError` with no loss means that the metrics cannot be read.
        """
        for start in range(0, len(events), AT_ONCE):
            try:
                with unforked:
                    self._count(events[start : start + AT_ONCE])
            except OSError as error:
                reason = errno.errorcode.get(error.errno or 0, "os_error").lower()
                lost = len(events) - start
                raise SinkError(f"{error}; {lost} not counted", reason=reason, lost=lost) from error
        self._metrics.pages.refresh()
        if self._claim is not None:  # in multiprocess mode a scrape cannot call our readers
            self._metrics.own.refresh()
            try:
                self._claim.renew()
            except OSError as error:  # the events are counted; the next batch tries again
                raise SinkError(
                    f"no claim on {_folder()}: {error}", reason="claim", lost=0
                ) from error
        if self._port is not None and not self._port.open():
            raise SinkError(self._port.trouble, reason="not_served", lost=0)

    def _count(self, events: Sequence[Event]) -> None:
        self._make_room()
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is not None:  # statements of processes are not counted
                handler(event)

    def _make_room(self) -> None:
        """In multiprocess mode, reserve room for more label sets, or raise an OSError."""
        if self._room is not None:
            self._room.ensure()

    def let_go(self) -> None:
        """Reset what a forked child must not inherit.

        A thread that was reading the pools does not exist there, so its lock is replaced. The
        child's bus counts from 0, so the totals of the parent's bus are dropped.
        """
        self._lock = threading.Lock()
        anew = ("events", "events_dropped", "sink_errors")
        for key in [key for key in self._totals if key[0] in anew]:
            del self._totals[key]

    def close(self) -> None:
        """Stop serving and reading the pools; the counters stay in the registry."""
        self._metrics.pages.read(self, self._rank, None)
        self._metrics.own.read(self, self._rank, None)
        if self._port is not None:
            self._port.close()

    def _registered(self, registry: CollectorRegistry) -> tuple[CollectorRegistry, Metrics]:
        try:
            return registry, metrics_of(registry)
        except ValueError as error:
            self._say(f"metrics are kept in a registry of their own, the host's refused: {error}")
            own = CollectorRegistry()
            return own, metrics_of(own)

    def _scraped(self) -> CollectorRegistry:
        """Return what a scrape gets: this registry, or the sum of all processes."""
        if not is_multiprocess():
            return self._registry
        return shared_registry(_folder())

    def _say(self, problem: str) -> None:
        self.problems.append(problem)
        _log.warning("hicache-dbg: %s", problem)

    def _create_known(self) -> None:
        """Create at 0 what is known before any event."""
        counters, rank = self._counters, str(self._rank)
        for sink, reasons in LOSS_REASONS.items():
            child(counters["sink_errors"], sink, rank)
            child(self._gauges["sink_queue_depth"], sink, rank)
            for reason in reasons:
                child(counters["events_dropped"], sink, reason, rank)
        for fault in FaultClass:
            child(counters["findings"], fault.value, "", rank)
        for name in ("events", "overhead_seconds"):
            child(counters[name], rank)
        child(self._gauges["queue_depth"], rank)

    def _started(self, event: Started) -> None:
        """Create every label set of the pools at 0, and set their geometry."""
        rank = str(event.rank)
        self._metrics.facts["rank_info"].tell((rank,), rank, *_place(event.place))
        for mirror in event.mirrors:
            self._make_room()
            for op, granular in product(Op, (False, True)):
                src, dst = DIRECTION[op]
                path = (mirror.pool, op.value, src.value, dst.value, mirror.host.layout)
                self._path((*path, str(granular), rank))
                self._tiles(mirror.pool, op.value, rank)
                for reason in SkipReason:
                    self._skipped(mirror.pool, op.value, reason.value, rank)
            for fault in FaultClass:
                child(self._counters["findings"], fault.value, mirror.pool, rank)
            for end in (mirror.device, mirror.host):
                self._geometry(mirror.pool, end, rank)
            pinned = child(self._gauges["pool_pinned_bytes"], mirror.pool, rank)
            pinned.set(_pinned_bytes(mirror.host))

    def _geometry(self, pool: str, end: EndInfo, rank: str) -> None:
        for part in end.components:
            names = (pool, end.tier.value, part.name, end.cls, end.layout, end.device, part.dtype)
            sizes = (part.slot_bytes, part.page_bytes, end.slots_per_page, part.pages, part.layers)
            where = (pool, end.tier.value, part.name, rank)
            self._metrics.facts["pool_geometry_info"].tell(where, *names, *sizes, rank)

    def _copied(self, event: Copied) -> None:
        rank = str(event.rank)
        ends = (event.src.value, event.dst.value)
        path = self._path(
            (event.pool, event.op.value, *ends, event.layout, str(event.token_granular), rank)
        )
        path.copies.inc()
        path.copied_bytes.inc(event.bytes)
        fits = 0 < len(event.trace_id) <= LONGEST_EXEMPLAR and event.trace_id.isascii()
        exemplar = {"trace_id": event.trace_id} if fits else None
        path.duration.observe(event.duration_us / 1e6, exemplar)
        verified, witnessed, mismatched, skipped = self._tiles(event.pool, event.op.value, rank)
        verified.inc(event.verified)
        witnessed.inc(event.witnessed)
        mismatched.inc(event.mismatched)
        skipped.inc(sum(event.skipped.values()))
        for reason, count in event.skipped.items():
            self._skipped(event.pool, event.op.value, reason, rank).inc(count)

    def _finding(self, event: Finding) -> None:
        labels = (event.cls.value, event.pool, str(event.rank))
        child(self._counters["findings"], *labels).inc(event.count)

    def _read_pools(self, pool_state: PoolStateReader) -> list[PoolPages]:
        """Return the pages by state; count the lookups on the way."""
        pages = []
        with self._lock:  # two scrapes may run at once
            for state in pool_state():
                if isinstance(state, PoolPages):
                    pages.append(state)
                else:
                    labels = (state.tier, state.end, str(self._rank))
                    with unforked:
                        self._advance("lookup_pages", state.pages, *labels)
        return pages

    def _health(self, event: Health) -> None:
        now = event.boot_ns or event.time_ns  # nobody sets the first clock
        with self._lock:  # a scrape and a heartbeat may run at once
            # A heartbeat that waited is older than what a scrape has read: ignore it. If it is
            # older by hours, the clock was set back: take it.
            if not 0 < self._latest.get(event.rank, 0) - now < LONGEST_WAIT_NS:
                self._latest[event.rank] = now
                with unforked:
                    self._told(event)

    def _told(self, event: Health) -> None:
        gauges, rank = self._gauges, str(event.rank)
        child(gauges["queue_depth"], rank).set(event.queue_depth)
        for sink, waiting in event.queues.items():
            child(gauges["sink_queue_depth"], sink, rank).set(waiting)
        self._advance("events", event.events, rank)
        self._advance("overhead_seconds", event.overhead_s, rank)
        for key, lost in event.dropped.items():
            sink, _, reason = key.partition("/")
            self._advance("events_dropped", lost, sink, reason, rank)
        for place, count in event.errors.items():
            kind, _, sink = place.partition("/")
            if kind == "sink":
                self._advance("sink_errors", count, sink, rank)
            else:
                self._advance("internal_errors", count, place, rank)

    def _advance(self, name: str, total: float, *labels: str) -> None:
        """Add the increase of a total; a total that fell restarted at 0."""
        last = self._totals.get((name, labels), 0.0)
        self._totals[name, labels] = total
        child(self._counters[name], *labels).inc(total - last if total >= last else total)

    def _bind_path(self, labels: tuple[str, ...]) -> _Path:
        pool, op, _src, _dst, layout, _granular, rank = labels
        return _Path(
            copies=child(self._counters["copies"], *labels),
            copied_bytes=child(self._counters["copied_bytes"], *labels),
            duration=child(self._metrics.duration, pool, op, layout, rank),
        )

    def _bind_tiles(self, pool: str, op: str, rank: str) -> tuple[Counter, ...]:
        tiles = self._counters["tiles"]
        return tuple(child(tiles, pool, op, result.value, rank) for result in Outcome)

    def _bind_skipped(self, pool: str, op: str, reason: str, rank: str) -> Counter:
        return child(self._counters["tiles_skipped"], pool, op, reason, rank)


def _folder() -> Path:
    """Return the folder where the library keeps the values of all processes."""
    return Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])


def _pinned_bytes(end: EndInfo) -> int:
    if not end.pinned:
        return 0
    return sum(part.page_bytes * part.pages * part.layers for part in end.components)


def _place(place: str) -> list[str]:
    """Split ``tp=1 pp=0 dp=0`` into the label values of the metric."""
    told = {name: value for name, _, value in (part.partition("=") for part in place.split())}
    return [told.get(name, "") for name in PLACE[1:]]
