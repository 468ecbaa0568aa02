"""What the wrappers report to: pools as they are built, calls as they move bytes."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hicache_dbg.tracer.attach.sglang import versions
from hicache_dbg.tracer.attach.sglang.classes import ANCHOR, is_host_pool, is_ours
from hicache_dbg.tracer.attach.sglang.copies import Given, Reading, layer_of, read_call
from hicache_dbg.tracer.attach.sglang.counters import ByteCounters
from hicache_dbg.tracer.attach.sglang.gates import Gates
from hicache_dbg.tracer.attach.sglang.gpu_booked import Booked
from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_pools import DevicePools
from hicache_dbg.tracer.attach.sglang.kinds import ARGUMENTS, BACKUP, LOAD
from hicache_dbg.tracer.attach.sglang.native.build import Unavailable, wanted
from hicache_dbg.tracer.attach.sglang.native.helper import Helper
from hicache_dbg.tracer.attach.sglang.owners import Owners
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe, OpenLoad
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.storage import Storage
from hicache_dbg.tracer.attach.sglang.transfers import Transfers
from hicache_dbg.tracer.checks.index_space import check_indices
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.settings import Native

__all__ = ["Observer", "Seen"]

_log = logging.getLogger("hicache_dbg")


@dataclass(frozen=True, slots=True)
class Seen:
    """A call that moves bytes; ``layer`` is the layer of a load in the views, None for all layers."""

    session: SglangSession
    record: PoolRecord
    given: Given
    layer: int | None


class Observer:
    """Keeps the session, which the first host pool starts, and what is known of the pools.

    Args:
        version: The version of SGLang.
        start: Starts the session; called once.
        announce: Reports what is attached to what.
        native: Whether usual operations run in compiled code.
    """

    def __init__(
        self,
        version: str,
        start: Callable[[], SglangSession],
        announce: Callable[[SglangSession], None],
        native: Native = Native.OFF,
    ) -> None:
        self._counted = version in versions.COUNTED
        self.registry = Registry()
        self.devices = DevicePools()
        self.bytes = ByteCounters()
        self.over: dict[int, set[str]] = {}
        self.say = Say(self.session, self.over)
        self.gates = Gates(self.say)
        self.owners = Owners(self.say, self.registry, self.given_away)
        self.calls = DeviceCalls(
            *(self.devices, self._booked, self.owners.copies),
            *(self.gates, self.over, self.entered),
        )
        self.frames = self.calls.frames
        self.calls.helper = self._helper(native)
        self.storage = Storage(self.say, self.registry)
        self.transfers = Transfers(self.say, self.started)
        #: The session, while nothing needs to be asked as SGLang begins an operation.
        self.ready: SglangSession | None = None
        self._on = False
        self._start = start
        self._announce = announce
        self._announced = True
        self._session: SglangSession | None = None
        self._failed = False
        self._lock = threading.RLock()

    def _helper(self, native: Native) -> Helper | None:
        """Return what makes compiled wrappers, or None; the reason is reported."""
        try:
            module = wanted(native)
            if module is not None:
                return Helper(module, self.calls, self.gates)
        except Unavailable as error:
            self.registry.inventory.not_recognised(f"compiled helper: {error}")
        except Exception as error:  # noqa: BLE001 - operations run in Python then
            why = f"{type(error).__name__}: {error}"
            self.registry.inventory.not_recognised(f"compiled helper: {why}")
        return None

    def _be_ready(self, session: SglangSession | None) -> None:
        """Note the session while an operation can begin without asking anything, else None."""
        self.ready = session
        if self.calls.helper is not None:
            self.calls.helper.ready(None if session is None else session.probe)

    @property
    def on(self) -> bool:
        """Whether anything is traced."""
        return self._on

    @on.setter
    def on(self, on: bool) -> None:
        self._on = on
        self._be_ready(None)

    def session(self) -> SglangSession | None:
        """Return the session, if there is one already."""
        return self._session if self._on else None

    def started(self) -> SglangSession | None:
        """Return the session, started now if needed; None if that failed before."""
        if self._session is None and self._on and not self._failed:
            with self._lock:
                if self._session is None and not self._failed:
                    self._failed = True
                    try:
                        self._session = self._start()
                        self._failed = False
                    except Exception as error:  # noqa: BLE001 - the host goes on without us
                        _log.warning(
                            "hicache-dbg cannot start (%s: %s): tracing stays off in this process",
                            type(error).__name__,
                            error,
                        )
        return self.session()

    def settle(self, within_s: float) -> None:
        """Wait until no operation is being submitted, for at most ``within_s`` seconds."""
        until, pause = time.monotonic() + within_s, threading.Event()
        while self.calls.running and time.monotonic() < until:
            pause.wait(0.001)

    def announce(self) -> None:
        """Report what is attached to what, if anything changed."""
        session = self.session()
        if session is not None and not self._announced:
            self._announced = True
            with session.errors.at("attach/announce"):
                self._announce(session)

    def built(self, pool: Any, arguments: tuple[Any, ...]) -> None:
        """Read a host pool that was just constructed, and check both ends before a byte moves."""
        session = self.started()
        if session is not None:
            self.adopt(session, pool, arguments)
            session.enforce()

    def adopt(self, session: SglangSession, pool: Any, arguments: tuple[Any, ...] = ()) -> None:
        """Read a host pool and check both ends; ``arguments`` are those of its constructor."""
        with session.errors.at("attach/pool"):
            if type(pool).__name__ == ANCHOR:
                self.registry.inventory.built.add(ANCHOR)
                self._announced = False
                self._be_ready(None)
                return
            self._add(session, pool)
            for argument in arguments:
                if is_host_pool(argument):
                    self.registry.follow(pool, argument)

    def given_away(self, pool: Any, indices: Any) -> None:
        """Note that a pool's allocator handed out ``indices``."""
        session = self.session()
        if session is not None and indices is not None:
            with session.errors.at("attach/alloc"):
                self.devices.history.note(self.registry.allocations(pool), indices)

    def grouped(self, group: Any) -> None:
        """Let pools without an allocator follow the allocations of the pool whose indices they use."""
        session = self.session()
        if session is None:
            return
        with session.errors.at("attach/group"):
            pools = {str(getattr(e.name, "value", e.name)): e.host_pool for e in group.entries}
            for name, pool in pools.items():
                source = versions.rides_on(name)
                anchor = pools.get(source, group.anchor_entry.host_pool) if source else pool
                if anchor is not pool:
                    self.registry.follow(pool, anchor)

    def see(
        self, pool: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Seen | None:
        """Return what a call moves; None if it moves nothing or is part of a call already seen."""
        if self.frames.is_inside(pool):
            return None
        session = self.started()
        if session is None or not session.probe.enabled:
            return None
        with session.errors.at("attach/call"):
            named = dict(zip(ARGUMENTS[method], args, strict=False)) | kwargs
            host, device = named.get("host_indices"), named.get("device_indices")
            if host is None or device is None or not (host.numel() or device.numel()):
                return None
            record = self.registry.of(pool) or self._add(session, pool)  # built before we came
            self.announce()
            over = named.get("device_pool")
            if over is not None:
                self.over.setdefault(id(over), set()).add(record.mirror.pool)
            is_load = method.startswith(LOAD)
            layer = layer_of(pool, record, named) if is_load else None
            if is_load and layer is None:
                return None
            backend = str(named.get("io_backend", "kernel"))
            op = Op.LOAD if is_load else Op.BACKUP
            given = Given(pool, method, host, device, backend, op, over)
            return Seen(session, record, given, layer)
        return None

    def entered(self) -> SglangSession | None:
        """Return the session as SGLang begins an operation; None if it is not traced."""
        session = self._session if self._on else None
        if session is None or not session.probe.enabled:
            return None
        if not self._announced:
            self.announce()
        if session.stops:
            session.enforce()
        else:
            self._be_ready(session)
        return session

    def read(self, seen: Seen, op_id: int) -> Copy:
        """Return the call as a copy, and report bad indices before a byte moves."""
        session, given = seen.session, seen.given
        reading = read_call(seen.record, given, op_id)
        self._tell(session, reading, given, op_id)
        pool, pages = reading.copy.mirror.pool, reading.copy.device_pages
        if given.op is Op.BACKUP:
            self.gates.read_pages(pool, pages, f"backup of {pool}")
        else:
            self.gates.moved(pool, pages)
        if self.frames.current is not None:
            opened = self.owners.copies.opened(reading.copy, given.device_pool)
            self.frames.current.here().opened.append(opened)
        return reading.copy

    def open(self, seen: Seen, op_id: int) -> OpenLoad:
        """Begin a load; a load that cannot be read is not traced."""
        with seen.session.errors.at("attach/load"):
            return seen.session.probe.open(self.read(seen, op_id))
        return OpenLoad(None)

    # -- copies on a GPU ------------------------------------------------------------------------

    def _booked(self, probe: LayerProbe) -> Booked:
        session = self._session
        assert session is not None  # noqa: S101 - the probe is its own

        def read(op: DeviceOp, reading: Reading, given: Given) -> None:
            self._tell(session, reading, given, op.frame.op_id)
            self.owners.copies.known(op, reading.copy, given.device_pool, op.frame.thread)

        history, running = self.devices.history, self.calls.running
        return Booked(history, running, probe.booked, probe.judged, read)

    def _tell(self, session: SglangSession, reading: Reading, given: Given, op_id: int) -> None:
        """Check a call's indices, and count the bytes it moved."""
        if reading.use is not None and session.settings.traces(reading.copy.mirror.pool):
            told = {"time_ns": time.time_ns(), "rank": session.settings.rank, "op_id": op_id}
            session.check(partial(check_indices, reading.use, **told))
        if given.op is Op.BACKUP and self._counted and len(reading.copy.host_pages):
            self.bytes.add(given.pool, reading.copy, reading.tokens)

    def _add(self, session: SglangSession, pool: Any) -> PoolRecord:
        with self._lock:
            return self.registry.of(pool) or self._read_pool(session, pool)

    def _read_pool(self, session: SglangSession, pool: Any) -> PoolRecord:
        record = self.registry.add(pool)
        for method in record.kind.rules if record.kind else (BACKUP, LOAD):
            if hasattr(pool, method) and not is_ours(getattr(type(pool), method)):
                self.registry.inventory.not_recognised(
                    f"{type(pool).__name__}.{method}: not attached"
                )
        with session.errors.at("attach/device"):
            self.devices.add(pool, record)
        self._announced = False
        self._be_ready(None)
        if record.geometry is not None and session.is_wrong(record.mirror):
            self.announce()  # at once: the first copy may be the one that corrupts
        return record
