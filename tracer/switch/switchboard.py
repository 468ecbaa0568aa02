"""Attach to the systems that run in an armed process on request, and detach again."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.switch.messages import Ask, Reply

if TYPE_CHECKING:
    from hicache_dbg.tracer.diagnose.evidence import Evidence
    from hicache_dbg.tracer.events import Event
    from hicache_dbg.tracer.runtime import Runtime
    from hicache_dbg.tracer.sink import PoolStateReader, Sink

__all__ = ["BOARD", "Switchboard"]

#: Makes the sinks of a rank; they query the reader for the pools' pages.
SinksOf = Callable[[Settings, "PoolStateReader"], Sequence["Sink"]]
#: Starts tracing a system; returns the runtime and what a late attachment cannot reach.
Begin = Callable[[Settings, SinksOf], tuple["Runtime", tuple[str, ...]]]

#: How long to wait between wrapping the functions and recording, in seconds. A call that began before
#: the wrapping is not recorded, and an allocator's books would lack its effect.
OLD_CALLS_S = 0.05
#: The longest run that can be requested with an end: a month, in seconds.
LONGEST_S = 31 * 86400.0
#: What a late attachment cannot know; part of every reply to ``on``.
LATE = "attached late: pages backed up before now are skipped (unwitnessed) until they are backed up again"


def _engine(settings: Settings, sinks_of: SinksOf) -> tuple["Runtime", tuple[str, ...]]:
    from hicache_dbg.tracer.runtime import Runtime

    runtime = Runtime.start(settings, sinks=sinks_of(settings, lambda: ()), on=False)
    time.sleep(OLD_CALLS_S)
    runtime.switch(on=True)
    return runtime, ("functions that were bound to a name before now are called as they were",)


def _sglang(settings: Settings, sinks_of: SinksOf) -> tuple["Runtime", tuple[str, ...]]:
    from hicache_dbg.tracer.attach.sglang.late import attach_late

    return attach_late(settings, sinks_of)


#: How to attach, by the module whose import shows that a process may hold pools of the system.
SYSTEMS: Mapping[str, Begin] = MappingProxyType(
    {"hicache_dbg.pools.transfer": _engine, "sglang.srt.mem_cache.memory_pool": _sglang}
)


class Watch:
    """A sink that keeps the counts needed for a verdict, and no events."""

    name = "verdict"

    def __init__(self) -> None:
        from hicache_dbg.tracer.diagnose.evidence import Evidence

        self.evidence: Evidence = Evidence()

    def emit(self, events: "Sequence[Event]") -> None:
        """Count the events."""
        for event in events:
            self.evidence.add(event)

    def close(self) -> None:
        """Do nothing: the sink holds no resource."""


class Switchboard:
    """Controls the tracer of this process: at most one run at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[Runtime] = []
        self._watch: Watch | None = None
        self._ended = threading.Event()
        self._until = 0.0  # when the run is to end, on the monotonic clock; 0 without an end

    def continue_in_child(self) -> None:
        """Let a run with an end end in a forked child too: whoever waits for it is in the parent."""
        self._lock, self._ended = threading.Lock(), threading.Event()
        if self._runs and self._until:
            left = max(0.0, self._until - time.monotonic())
            threading.Thread(
                target=self._off_after,
                args=(left, self._ended),
                name="hicache-dbg-end",
                daemon=True,
            ).start()

    def answer(self, ask: Ask, reply: Callable[[Reply], None]) -> None:
        """Carry out a request; answer again at the end of a run that was requested with one."""
        if ask.do == "off":
            reply(self._off())
            return
        if ask.do != "on":
            reply(Reply(done=False, text=f"{ask.do!r} is not a request, expected on or off"))
            return
        if not 0 <= ask.for_s <= LONGEST_S:  # Event.wait() rejects much longer waits
            text = f"tracing for {ask.for_s:g} s: expected 0 to {LONGEST_S:g} s"
            reply(Reply(done=False, text=text))
            return
        ended = threading.Event()
        first = self._on(ask, ended)
        reply(first)
        if first.done and ask.for_s:
            reply(self._off_after(ask.for_s, ended))

    def _off_after(self, seconds: float, ended: threading.Event) -> Reply:
        ended.wait(seconds)
        return self._off(ended)

    def _on(self, ask: Ask, ended: threading.Event) -> Reply:
        began = time.perf_counter()
        with self._lock:
            if self._runs:
                return Reply(done=False, text="tracing is on already; switch it off first")
            present = [begin for module, begin in SYSTEMS.items() if module in sys.modules]
            if not present:
                return Reply(
                    done=False,
                    text=f"process {os.getpid()} holds no pools: none of {', '.join(SYSTEMS)} is imported",
                )
            self._ended = ended
            self._until = time.monotonic() + ask.for_s if ask.for_s else 0.0
            try:
                notes = self._begin(ask, present)
            except Exception as error:  # noqa: BLE001 - a failed attachment must not end the host
                self._end()
                return Reply(done=False, text=f"cannot start: {type(error).__name__}: {error}")
        return Reply(
            done=True,
            text=f"tracing process {os.getpid()}"
            + (f" for {ask.for_s:g} s" if ask.for_s else ", until it is switched off"),
            notes=(LATE, *notes),
            took_s=time.perf_counter() - began,
        )

    def _begin(self, ask: Ask, present: Sequence[Begin]) -> list[str]:
        from hicache_dbg.tracer.sinks import build_sinks

        environ = {**os.environ, **ask.settings, "HICACHE_DBG": "1"}
        settings = Settings.from_environ(environ)
        self._watch = watch = Watch()

        def sinks_of(ranked: Settings, pool_state: "PoolStateReader") -> "Sequence[Sink]":
            return [*build_sinks(ranked, pool_state).sinks, watch]

        notes: list[str] = []
        for begin in present:
            runtime, said = begin(settings, sinks_of)
            self._runs.append(runtime)
            notes.extend(said)
        return notes

    def _off(self, only: threading.Event | None = None) -> Reply:
        """End the run.

        With ``only``, end it only if it is still the run that the event belongs to.
        """
        began = time.perf_counter()
        with self._lock:
            another = only is not None and only is not self._ended
            if another or not self._runs or self._watch is None:
                return Reply(done=False, text="tracing is off already")
            evidence = self._watch.evidence
            self._end()
        return Reply(
            done=True,
            text=f"process {os.getpid()} runs as before",
            took_s=time.perf_counter() - began,
            report=_report(evidence),
        )

    def _end(self) -> None:
        while self._runs:
            with contextlib.suppress(Exception):  # a failure must not keep the others attached
                self._runs.pop().stop()
        self._watch = None
        self._ended.set()


#: The switchboard of this process; there is one, because functions can be wrapped only once.
BOARD = Switchboard()
os.register_at_fork(after_in_child=BOARD.continue_in_child)


def _report(evidence: "Evidence") -> dict[str, Any]:
    from hicache_dbg.tracer.diagnose.report import build_report

    return dict(msgspec.to_builtins(build_report(evidence)))
