"""What one attached run shares: probe, bus, judge, and the mirrors seen so far."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hicache_dbg.tracer.bus import Bus, Record
from hicache_dbg.tracer.checks.layout import check_layout
from hicache_dbg.tracer.checks.pinning import check_pinning
from hicache_dbg.tracer.checks.registration import check_mirror
from hicache_dbg.tracer.checks.shared_space import check_shared_space
from hicache_dbg.tracer.digest.driver import beside_captures
from hicache_dbg.tracer.events import Event, Finding, MirrorInfo, Started, Stated, Topic
from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.host_budget import HostBudget
from hicache_dbg.tracer.judge import Judge
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Digester, Probe
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Action, Settings
from hicache_dbg.tracer.sink import Sink

__all__ = ["CorruptionFoundError", "Session"]

_log = logging.getLogger("hicache_dbg")


class CorruptionFoundError(RuntimeError):
    """Raised under ``HICACHE_DBG_ACTION=raise``: the cache has a finding and the host must stop."""


class Session:
    """The core of a run of the tracer, below attachments and above the sinks.

    Attachments call :meth:`register` for each mirror and :attr:`probe` for each copy. ``place``
    names this rank within the system.
    """

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink],
        digester: Digester,
        *,
        system: str,
        version: str,
        place: str = "",
        errors: InternalErrors | None = None,
    ) -> None:
        self.settings = settings
        self.errors = errors if errors is not None else InternalErrors()
        self._system = system
        self._version = version
        self._place = place
        self._mirrors: dict[str, MirrorInfo] = {}  # no views: they would keep pool memory alive
        self._caches: dict[tuple[str, ...], None] = {}  # an ordered set
        self._built: set[str] = set()
        self._seen: dict[str, None] = {}  # all pools, traced or not: an ordered set
        self._first: Finding | None = None
        self._budget = HostBudget(settings.host_gb)
        self._unlock()
        after_fork(self._unlock)
        #: Called on the bus's thread with each copy that was judged while tracing is on.
        self.on_judged: list[Callable[[CopyRecord], None]] = []
        #: Called on the bus's thread when the contents of pages are no longer known.
        self.on_gap: list[Callable[[], None]] = []
        self._on = self._counted = True  # until :meth:`unwatch`, writes to pages are counted
        # Gaps in what is traced, by number: the latest, and the latest that the bus's thread has met.
        self._gap, self._met = 0, 0
        self.judge = Judge(settings, digester, self.watched)
        self.bus = Bus(
            sinks,
            capacity=settings.queue,
            errors=self.errors,
            rank=settings.rank,
            overhead=lambda: self.probe.overhead_s,
            on_finding=self._found,
            prepare=beside_captures,
        )
        self.probe = Probe(
            bus=self.bus,
            digester=digester,
            settings=settings,
            errors=self.errors,
            judge=self._judged,
            enforce=self.enforce,
        )

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may switch tracing

    def register(
        self,
        mirrors: Sequence[MirrorViews],
        *,
        host_classes: Iterable[str],
        built: Iterable[str] = (),
        unrecognised: Sequence[str] = (),
        cache: Sequence[str] = (),
    ) -> None:
        """Announce mirrors: publish a start record, then what is wrong with their geometry.

        Of pools that ``HICACHE_DBG_POOLS`` excludes, only the class is reported: a pool whose
        copies are not traced would look like one that never moves.

        Args:
            mirrors: the mirrors to announce.
            host_classes: all host pool classes of the system, built or not.
            built: host pool classes of pools without a mirror.
            unrecognised: what could not be read.
            cache: names of the pools that move together.
        """
        now = time.time_ns()
        traced = [mirror for mirror in mirrors if self.settings.traces(mirror.pool)]
        with self._lock:
            self._mirrors |= {mirror.pool: mirror.info() for mirror in traced}
            self._built |= {mirror.host_cls for mirror in mirrors} | set(built)
            if together := tuple(filter(self.settings.traces, cache)):
                self._caches[together] = None
            started = self._started(now, set(host_classes), tuple(unrecognised))
            pools = self._none_traced(mirrors)
        if pools:
            _log.warning(
                "hicache-dbg: HICACHE_DBG_POOLS=%s matches none of the pools so far (%s): "
                "none of their copies is traced",
                ",".join(self.settings.pools),
                ", ".join(pools),
            )
        self.bus.publish(started)
        over = self._budget.hold(mirrors, time_ns=now, rank=self.settings.rank)
        for finding in [*self._geometry(traced, now), *over]:
            self._found(finding)
            self.bus.publish(finding)

    def _none_traced(self, mirrors: Sequence[MirrorViews]) -> list[str]:
        """Return the names of the first pools that are announced if none is traced (lock held)."""
        first = not self._seen
        self._seen |= dict.fromkeys(mirror.pool for mirror in mirrors)
        return list(self._seen) if first and not self._mirrors else []

    def _started(self, now: int, classes: set[str], unrecognised: tuple[str, ...]) -> Started:
        """Return the start record of everything announced so far (lock held)."""
        return Started(
            time_ns=now,
            rank=self.settings.rank,
            system=self._system,
            version=self._version,
            checksum=self.settings.checksum.value,
            mirrors=tuple(self._mirrors.values()),
            classes_built=tuple(sorted(self._built)),
            classes_unbuilt=tuple(sorted(classes - self._built)),
            unrecognised=unrecognised,
            place=self._place,
            caches=tuple(self._caches),
        )

    def is_wrong(self, mirror: MirrorViews) -> bool:
        """Return whether the geometry of a mirror's two ends yields a finding."""
        return self.settings.traces(mirror.pool) and bool(self._geometry([mirror], 0))

    def _geometry(self, traced: Sequence[MirrorViews], now: int) -> list[Finding]:
        told: list[Finding] = []
        shared = check_shared_space(traced, time_ns=now, rank=self.settings.rank)
        for mirror in traced:
            told += [finding for finding in shared if finding.pool == mirror.pool]
            told += check_mirror(mirror, time_ns=now, rank=self.settings.rank)
            told += check_layout(mirror, time_ns=now, rank=self.settings.rank)
            told += check_pinning(mirror.pool, mirror.pinning, time_ns=now, rank=self.settings.rank)
        return told

    def check(self, detect: Callable[[], Sequence[Finding]]) -> bool:
        """Run ``detect`` on the bus's thread, in order; return False if the ring is full."""
        return self.bus.push(_Check(detect))

    def tell(self, findings: Iterable[Finding]) -> None:
        """Publish what was found, in order; it has room even if copies fill the ring."""
        for finding in findings:
            self.bus.publish(finding)

    def push(self, record: Record) -> bool:
        """Queue ``record`` for the bus's thread; return False if the ring is full."""
        return self.bus.push(record)

    def state(
        self,
        topic: Topic,
        values: Sequence[str],
        *,
        alone: bool = False,
        time_ns: int = 0,
        **about: Any,
    ) -> None:
        """Publish a statement that other processes must agree with.

        A single rank publishes it only if it has a ``role`` or ``alone`` is set.

        Args:
            topic: what it is about.
            values: what this process says.
            alone: publish it even if there is only one rank.
            time_ns: when it was true, in nanoseconds since the epoch; 0 means now.
            about: further fields of :class:`~hicache_dbg.tracer.events.Stated`.
        """
        if self.settings.ranks > 1 or alone or about.get("role"):
            rank, when = self.settings.rank, time_ns or time.time_ns()
            said = Stated(time_ns=when, rank=rank, topic=topic, values=tuple(values), **about)
            self.bus.publish(said, rare=topic is not Topic.TILES)

    def switch(self, *, on: bool) -> None:
        """Start or stop tracing, and forget the ledger: page writes in between are not seen."""
        with self._lock:
            self._gap += 1
            self.probe.enabled = self._on = on
            self.bus.insist(_Check(partial(self._forget, self._gap)))

    def watched(self) -> bool:
        """Return whether every page write has been counted since the ledger was last cleared."""
        return self._counted and self._on and self._gap == self._met

    def unwatch(self) -> None:
        """Stop trusting the write counts for good: the wrappers that count are about to be removed."""
        self._counted = False

    def _forget(self, gap: int) -> Sequence[Finding]:
        self.judge.ledger.forget()
        self._met = gap
        for forget in self.on_gap:
            forget()
        return ()

    def enforce(self) -> None:
        """Under ``HICACHE_DBG_ACTION=raise``, raise the first finding in the host.

        Never on one rank of many: ranks that disagree about stopping hang each other.
        """
        if (
            self._first is not None
            and self.settings.action is Action.RAISE
            and self.settings.ranks == 1
        ):
            raise CorruptionFoundError(self._first.message)

    def close(self, timeout: float = 2.0) -> None:
        """Stop the bus and deliver what is queued, in bounded time."""
        self.probe.enabled = False
        self.bus.close(timeout)

    def _judged(self, record: CopyRecord) -> list[Event]:
        events = self.judge(record)
        for look in self.on_judged if self._on else ():
            look(record)
        return events

    def _found(self, finding: Finding) -> None:
        if self._first is None:
            self._first = finding


@dataclass(frozen=True, slots=True)
class _Check:
    """A detector that runs in order with the copies it examines."""

    detect: Callable[[], Sequence[Finding]]

    def ready(self) -> bool:
        return True

    def events(self) -> Sequence[Finding]:
        return self.detect()
