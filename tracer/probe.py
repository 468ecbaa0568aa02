"""What runs on the host's own threads, around a copy: digest, call, digest, append.

Nothing here waits, logs or raises on its own account. What the digests mean is worked out on the
bus's thread (:mod:`hicache_dbg.tracer.judge`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Event, Op, SkipReason, Tier
from hicache_dbg.tracer.ledger import Digests, Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.sampling import chosen
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Checksum, Settings
from hicache_dbg.tracer.view import View

__all__ = ["CopyRecord", "Digester", "Point", "Probe", "digest_tiles"]

Copies = Callable[[], Sequence[Copy]]
LayerDone = Callable[[int], None]


class Digester(Protocol):
    """Digests tiles where they lie."""

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: Pages,
        first: int = 0,
        last: int | None = None,
    ) -> Digests:
        """XXH3-64 of slots ``first .. last - 1`` of each tile: uint64 [layers, pages].

        Of tiles on a CPU they are there on return, of others after :meth:`join`.
        """
        ...

    def join(self) -> None:
        """Wait until what this thread asked for can be read."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """Digests that are readable after the digester's join, and where they belong."""

    into: Digests
    at: tuple[slice, "slice | np.ndarray"]
    digests: Digests


class Point(StrEnum):
    """When and where a digest is taken."""

    SOURCE_BEFORE = "source_before"
    SOURCE_AFTER = "source_after"
    DESTINATION = "destination"


#: Which digests the probe takes around an operation, by how much is asked for. ``ends`` adds the
#: host end of a backup on the bus's thread, where it costs the host nothing.
_LOADS: dict[Op, tuple[Point, ...]] = {
    Op.BACKUP: (Point.SOURCE_BEFORE,),
    Op.LOAD: (Point.DESTINATION,),
}
POINTS: dict[Checksum, dict[Op, tuple[Point, ...]]] = {
    Checksum.OFF: {},
    Checksum.SAMPLE: _LOADS,
    Checksum.LOADS: _LOADS,
    Checksum.ENDS: _LOADS,
    Checksum.THREE: dict.fromkeys(
        (Op.BACKUP, Op.LOAD), (Point.SOURCE_BEFORE, Point.SOURCE_AFTER, Point.DESTINATION)
    ),
}


@dataclass(slots=True)
class CopyRecord:
    """One copy and the digests taken around it, on its way to the judge.

    ``digests`` maps (point, component) to uint64 [layers, digested pages]; ``digested`` marks the
    pages (of the copy's order) that were digested, ``writes`` counts how often each host page had
    begun to be written when this copy was. ``skip`` says why no tile can be judged, if none can.
    ``pending`` are digests that a device may still be writing.
    """

    copy: Copy
    judge: "Callable[[CopyRecord], list[Event]]"
    digested: np.ndarray  # bool [pages]
    writes: Pages
    time_ns: int = 0
    duration_us: float = 0.0
    status: str = "ok"
    digests: dict[tuple[Point, str], Digests] = field(default_factory=dict)
    skip: SkipReason | None = None
    pending: list[_Pending] = field(default_factory=list)

    def settle(self) -> None:
        """Take over what was pending; its digester was joined."""
        for part in self.pending:
            part.into[part.at] = part.digests
        self.pending.clear()

    def room(self, point: Point, component: str) -> Digests:
        """The array for the digests of one component at one point, made at first use."""
        shape = (len(self.copy.layers), int(self.digested.sum()))
        return self.digests.setdefault((point, component), np.zeros(shape, np.uint64))

    def ready(self) -> bool:
        """The digests were joined before the record was appended."""
        return True

    def events(self) -> list[Event]:
        """The copy's event and what is wrong with it."""
        return self.judge(self)


class Probe:
    """Wraps one call that moves bytes.

    Args:
        bus: where records go.
        digester: takes the digests.
        settings: what is traced, and how closely.
        errors: where failures of the probe itself are counted.
        judge: turns a record into events; called on the bus's thread.
        enforce: raises where the host asked to be stopped by an earlier finding.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        digester: Digester,
        settings: Settings,
        errors: InternalErrors,
        judge: Callable[[CopyRecord], list[Event]],
        enforce: Callable[[], None] = lambda: None,
    ) -> None:
        self.enabled = True
        self.overhead_s = 0.0
        self._bus = bus
        self._digester = digester
        self._settings = settings
        self._errors = errors
        self._judge = judge
        self._enforce = enforce
        self._points = POINTS[settings.checksum]

    def observe(self, copies: Copies, call: Callable[[], None]) -> None:
        """Run ``call``, which performs what ``copies()`` describes, with digests around it.

        An exception of ``call`` is recorded as the operation's status and goes on to the host;
        one of ours is counted and goes no further.
        """
        if not self.enabled:
            call()
            return

        def plain(_: list[CopyRecord]) -> float:
            call()
            return 0.0

        def arrived(records: list[CopyRecord]) -> None:
            self._take(records, Point.DESTINATION)

        self._run(copies, plain, arrived)

    def observe_layers(
        self, copies: Copies, call: Callable[[LayerDone], None], on_layer_done: LayerDone
    ) -> None:
        """As :meth:`observe`, for a load that says of each layer when its bytes are there.

        A layer is digested after its gate opened, beside whatever reads it; the last one before,
        because with its gate the engine takes the load for complete and lets the pages go.
        """
        if not self.enabled:
            call(on_layer_done)
            return

        waiting: set[int] = set()

        def tapped(records: list[CopyRecord]) -> float:
            ours = 0.0
            waiting.update(layer for record in records for layer in record.copy.model_layers)

            def layer_done(layer: int) -> None:
                nonlocal ours
                waiting.discard(layer)
                if waiting:
                    on_layer_done(layer)
                began = time.perf_counter()
                self._take(records, Point.DESTINATION, layer)
                if not waiting:
                    self._join(records)
                ours += time.perf_counter() - began
                if not waiting:
                    on_layer_done(layer)

            call(layer_done)
            return ours

        def unannounced(records: list[CopyRecord]) -> None:
            for layer in waiting:
                self._take(records, Point.DESTINATION, layer)

        self._run(copies, tapped, unannounced)

    def _run(
        self,
        copies: Copies,
        call: Callable[[list[CopyRecord]], float],
        after: Callable[[list[CopyRecord]], None],
    ) -> None:
        begun = time.perf_counter()
        self._enforce()
        records: list[CopyRecord] = []
        with self._errors.at("probe/before"):
            records = [self._open(copy) for copy in copies() if self._traced(copy)]
            self._take(records, Point.SOURCE_BEFORE)
        started = time.perf_counter()
        status, ours = "ok", 0.0  # seconds of our own inside the call
        try:
            ours = call(records)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
            raise
        finally:
            ended = time.perf_counter()
            with self._errors.at("probe/after"):
                if status == "ok":
                    after(records)
                    self._take(records, Point.SOURCE_AFTER)
                self._join(records)
                self._append(records, (ended - started - ours) * 1e6, status)
            spent = time.perf_counter() - ended + ours + started - begun
            self.overhead_s += spent  # nothing is called in between: another thread adds as well

    def _traced(self, copy: Copy) -> bool:
        settings = self._settings
        return settings.traces(copy.mirror.pool) and any(
            fnmatchcase(copy.op, glob) for glob in settings.ops
        )

    def _open(self, copy: Copy) -> CopyRecord:
        digested = np.full(len(copy.host_pages), copy.op in self._points)
        if self._settings.checksum is Checksum.SAMPLE and copy.op in self._points:
            digested = chosen(copy.host_pages, copy.generations, self._settings.sample)
        if not copy.fits:  # whoever refuses it or not: such pages have no tiles to look at
            none = np.zeros(len(copy.host_pages), np.int64)
            return CopyRecord(copy, self._judge, digested, none, skip=SkipReason.UNWITNESSED)
        writes = copy.mirror.writes
        if copy.tiers[1] is Tier.HOST:
            writes[copy.host_pages] += 1
        return CopyRecord(copy, self._judge, digested, writes[copy.host_pages])

    def _take(self, records: list[CopyRecord], point: Point, layer: int | None = None) -> None:
        """Digest at ``point`` what the level asks for: all layers, or the model's ``layer``."""
        for record in records:
            copy = record.copy
            if point not in self._points.get(copy.op, ()) or record.skip is not None:
                continue
            rows = slice(None)
            if layer is not None:
                if layer not in copy.model_layers:
                    continue
                row = copy.model_layers.index(layer)
                rows = slice(row, row + 1)
            try:
                for component in copy.mirror.device:
                    self._digest(record, point, component, rows)
            except DigestRefusedError as refused:
                record.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - whatever it is, the copy goes on
                record.skip = SkipReason.INTERNAL_ERROR
                self._errors.record(f"digest/{point}", error)

    def _digest(self, record: CopyRecord, point: Point, component: str, rows: slice) -> None:
        view = _view(record.copy, component, point)
        if view is None:  # a component that this end does not have
            return
        into = record.room(point, component)
        parts = digest_tiles(self._digester, record.copy, component, point, record.digested, rows)
        for columns, digests in parts:
            if view.device == "cpu":
                into[rows, columns] = digests
            else:
                record.pending.append(_Pending(into, (rows, columns), digests))

    def _join(self, records: Sequence[CopyRecord] = ()) -> None:
        """With the engine's next step the pages may be written: every digest must be taken."""
        try:
            self._digester.join()
            for record in records:
                record.settle()
        except Exception as error:  # noqa: BLE001 - as above: what is not there vouches for nothing
            for record in records:
                record.skip = SkipReason.INTERNAL_ERROR
            self._errors.record("digest/join", error)

    def _append(self, records: list[CopyRecord], duration_us: float, status: str) -> None:
        now = time.time_ns()
        for record in records:
            record.time_ns = now
            record.duration_us = duration_us
            record.status = status
            self._bus.push(record)


def _view(copy: Copy, component: str, point: Point) -> View | None:
    mirror = copy.mirror
    return (mirror.host if _tier(copy, point) is Tier.HOST else mirror.device).get(component)


def _tier(copy: Copy, point: Point) -> Tier:
    source, destination = copy.tiers
    return destination if point is Point.DESTINATION else source


def digest_tiles(  # noqa: PLR0917
    digester: Digester,
    copy: Copy,
    component: str,
    point: Point,
    digested: np.ndarray,
    rows: slice = slice(None),
) -> Iterator[tuple[slice | np.ndarray, Digests]]:
    """Digests of the chosen tiles of one component at one point, in parts.

    Yields which of the chosen pages, and their digests, uint64 [layers, pages]. Each end is read
    through its own view. ``rows`` chooses among the copy's layers. Pages of a token-granular copy
    are digested in groups of equal slot range.
    """
    at_host = _tier(copy, point) is Tier.HOST
    view = (copy.mirror.host if at_host else copy.mirror.device)[component]
    pages = (copy.host_pages if at_host else copy.device_pages)[digested]
    layers = copy.layers[rows]
    if copy.spans is None:
        yield slice(None), digester.digest(view, layers, pages)
        return
    ends = copy.spans[digested][:, 0:2] if at_host else copy.spans[digested][:, 2:4]
    for first, last in np.unique(ends, axis=0):
        group = (ends == (first, last)).all(axis=1)
        if last > first:
            yield group, digester.digest(view, layers, pages[group], int(first), int(last))
