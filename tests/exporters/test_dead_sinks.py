"""Each sink dead in turn: the others get everything, and each reports what the dead one lost."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from tests.dashboards.stack import free_port
from tests.exporters.journal import Journal
from tests.exporters.receiver import Receiver, attributes
from tests.exporters.samples import copied, started

from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Health
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Lines, Listen, Settings
from hicache_dbg.tracer.sinks import build_sinks

COPIES = 2000
PATH = {
    "pool": "deepseek_v4_c128",
    "op": "backup",
    "src": "device",
    "dst": "host",
    "rank": "0",
    "layout": "page_first",
    "token_granular": "False",
}
SINKS = ("journald", "otel", "prometheus", "recording", "stderr")
#: One call of the host: an append, whatever the sinks do. Generous for a machine that is busy.
LONGEST_PUBLISH_S = 0.5


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Cleanup after the test, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def receiver(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """A collector that answers, with the variables that point to it."""
    receiver = Receiver()
    stack.callback(receiver.close)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    return receiver


@pytest.fixture
def settings(journal: Journal, receiver: Receiver, tmp_path: Path) -> dict[str, Any]:
    """Settings under which every sink works."""
    return {
        "sinks": SINKS,
        "journald_socket": journal.socket,
        "directory": tmp_path / "recordings",
        "prometheus_port": Listen(free_port()),
        "queue": 2 * COPIES,
        "lines": Lines.ALL,
    }


Settle = Callable[[dict[str, Any], ExitStack, Path], None]


def absent_journald(settings: dict[str, Any], _stack: ExitStack, folder: Path) -> None:
    """Point journald to a socket that does not exist."""
    settings["journald_socket"] = folder / "absent"


def full_socket(settings: dict[str, Any], stack: ExitStack, folder: Path) -> None:
    """Point journald to a socket whose owner does not read."""
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    deaf.bind(str(folder / "deaf"))
    settings["journald_socket"] = folder / "deaf"


def dead_collector(_settings: dict[str, Any], stack: ExitStack, _folder: Path) -> None:
    """Point OTLP to a port without a listener."""
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")


def read_only_folder(settings: dict[str, Any], stack: ExitStack, folder: Path) -> None:
    """Record to a file system that is not writable."""
    mount(stack, folder / "read-only", "ro")
    settings["directory"] = folder / "read-only"


def full_disk(settings: dict[str, Any], stack: ExitStack, folder: Path) -> None:
    """Record to a file system with room for a few events."""
    mount(stack, folder / "small", "size=64k")
    settings["directory"] = folder / "small"


def mount(stack: ExitStack, place: Path, option: str) -> None:
    """Mount a file system in memory."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", option, "hicache-dbg-test", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    stack.callback(subprocess.run, ["umount", str(place)], check=True)


def port_in_use(settings: dict[str, Any], stack: ExitStack, _folder: Path) -> None:
    """Occupy the port with another socket."""
    other = stack.enter_context(socket.socket())
    other.bind(("", settings["prometheus_port"]))
    other.listen()


def closed_terminal(_settings: dict[str, Any], stack: ExitStack, _folder: Path) -> None:
    """Close the reader of standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", closefd=True)
    kept, sys.stderr = sys.stderr, stream

    def restore() -> None:
        sys.stderr = kept
        with suppress(BrokenPipeError):
            stream.close()

    stack.callback(restore)


CASES: dict[Settle, tuple[str, str]] = {
    absent_journald: ("journald", "absent"),
    full_socket: ("journald", "blocked"),
    dead_collector: ("otel", "export"),
    read_only_folder: ("recording", "refused"),
    full_disk: ("recording", "enospc"),
    port_in_use: ("prometheus", ""),
    closed_terminal: ("stderr", "io"),
}


def run(settings: dict[str, Any]) -> tuple[Health, float]:
    """Send copies through a bus with a fast heartbeat; return the last health event and slowest publish."""
    chosen = Settings(**settings)
    built = build_sinks(chosen, lambda: ())
    bus = Bus(built.sinks, capacity=chosen.queue, errors=InternalErrors(), heartbeat_s=0.3)
    bus.publish(started())
    longest = 0.0
    for number in range(COPIES):
        event = copied(op_id=number + 1, h=number)
        begun = time.perf_counter()
        bus.publish(event)
        longest = max(longest, time.perf_counter() - begun)
    # The living are done at once; the dead one backs off with what it holds.
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not told(bus.health()):
        time.sleep(0.05)
    bus.close(1.0)
    return bus.health(), longest


def told(health: Health) -> bool:
    """Return whether a loss or a failure was reported."""
    return bool(health.dropped) or any(place.startswith("sink/") for place in health.errors)


@pytest.mark.service
@pytest.mark.parametrize("settle", CASES, ids=lambda settle: settle.__name__)
def test_a_dead_sink_is_told_by_every_living_one(
    settle: Settle,
    *,
    settings: dict[str, Any],
    stack: ExitStack,
    journal: Journal,
    receiver: Receiver,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The host is not delayed, the living sinks miss nothing, and each reports the loss and its place."""
    settle(settings, stack, tmp_path)
    dead, reason = CASES[settle]
    counted = Counted(dead)
    last, longest = run(settings)
    assert longest < LONGEST_PUBLISH_S
    assert last.errors[f"sink/{dead}"] >= 1
    assert {place.partition("/")[0] for place in last.dropped} == ({dead} if reason else set())
    if reason:
        assert last.dropped[f"{dead}/{reason}"] >= 1
    place = f"{dead}/{reason}" if reason else f"sink/{dead}"
    printed = capfd.readouterr().err
    telling: dict[str, Callable[[], tuple[int, bool]]] = {
        "journald": lambda: in_journal(journal, place),
        "otel": lambda: in_collector(receiver, place),
        "prometheus": counted.since,
        "recording": lambda: in_recording(settings["directory"], place),
        "stderr": lambda: in_text(printed, place),
    }
    for name in set(SINKS) - {dead}:
        assert telling[name]() == (COPIES, True), name


def tells(health: Health, place: str) -> bool:
    """Return whether a health event reports a loss or a failure at ``place``."""
    return bool(health.dropped.get(place) or health.errors.get(place))


def in_journal(journal: Journal, place: str) -> tuple[int, bool]:
    """Return the copies in the journal, and whether a health entry there reports ``place``."""
    query = ("-o", "json", "--all", "--output-fields=HICACHE_RECORD", "HICACHE_EVENT=health")
    entries = [json.loads(text)["HICACHE_RECORD"] for text in journal.lines(*query)]
    told = [tells(msgspec.json.decode(entry, type=Health), place) for entry in entries]
    return len(journal.lines("-o", "cat", "HICACHE_EVENT=copied")), any(told)


def in_recording(folder: Path, place: str) -> tuple[int, bool]:
    """Return the copies in the recording, and whether a health event there reports ``place``."""
    (path,) = recordings_in(folder)
    events = list(read(path))
    told = [tells(event, place) for event in events if isinstance(event, Health)]
    return sum(isinstance(event, Copied) for event in events), any(told)


def in_text(printed: str, place: str) -> tuple[int, bool]:
    """Return the copies among the lines of text, and whether a health line reports ``place``."""
    lines = printed.splitlines()
    copies = [text for text in lines if text.startswith("[HICACHE_DBG] pool=")]
    health = [text for text in lines if text.startswith("hicache-dbg health")]
    return len(copies), any(f"{place}:" in text for text in health)


def in_collector(receiver: Receiver, place: str) -> tuple[int, bool]:
    """Return the spans at the collector, and whether a record (and a metric) reports ``place``."""
    told = any(f"{place}:" in record.body.string_value for record in receiver.records)
    if not place.startswith("sink/"):
        points = receiver.metrics["hicache.event.lost"].sum.data_points
        named = [attributes(point) for point in points]
        told &= place in {f"{at['hicache.sink']}/{at['hicache.reason']}" for at in named}
    return len(receiver.spans), told


class Counted:
    """The increase of the process's own registry from now on."""

    def __init__(self, dead: str) -> None:
        self._labels = {"sink": dead, "rank": "0"}
        self._copies, self._failures = self._now()

    def since(self) -> tuple[int, bool]:
        """Return the copies, and whether failures of the dead sink were counted."""
        copies, failures = self._now()
        return int(copies - self._copies), failures > self._failures

    def _now(self) -> tuple[float, float]:
        value = REGISTRY.get_sample_value
        failures = value("hicache_dbg_sink_errors_total", self._labels) or 0.0
        return value("hicache_dbg_copies_total", PATH) or 0.0, failures


#: A host that copies with everything dead: how long its longest publish took, and what was counted.
ALL_DEAD = """
import json, sys, time
import msgspec
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sinks import build_sinks
event = msgspec.json.decode(sys.argv[1], type=Copied)
settings = Settings.from_environ()
bus = Bus(build_sinks(settings, lambda: ()).sinks, capacity=1000, errors=InternalErrors())
longest = 0.0
for number in range(10_000):
    begun = time.perf_counter()
    bus.publish(event)
    longest = max(longest, time.perf_counter() - begun)
deepest = max(outbox.depth for outbox in bus._outboxes)
begun = time.perf_counter()
bus.close(1.0)
print(json.dumps([longest, deepest, time.perf_counter() - begun, bus.health().dropped]))
"""


def test_with_every_sink_dead_the_host_goes_on_and_ends(tmp_path: Path) -> None:
    """With no collector, socket or recording folder, 10,000 events only cost being counted.

    Queues stay bounded, each sink's loss is counted, and the process ends within its limit.
    """
    environ = {
        "HICACHE_DBG_SINKS": "journald,otel,prometheus",
        "HICACHE_DBG_JOURNALD_SOCKET": str(tmp_path / "absent"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "PROMETHEUS_MULTIPROC_DIR": "/sys/kernel",  # nobody creates a file there
    }
    event = msgspec.json.encode(copied()).decode()
    command = [sys.executable, "-c", ALL_DEAD, event]
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=True
    )
    longest, deepest, closing, dropped = json.loads(done.stdout)
    assert longest < LONGEST_PUBLISH_S
    assert deepest <= 1000 + 1
    assert closing < 15.0
    lost: dict[str, int] = {}
    for place, count in dropped.items():
        name = place.partition("/")[0]
        lost[name] = lost.get(name, 0) + count
    # What the bus itself had no room for reached no sink; the closing heartbeat is one event more.
    reached = 10_000 - lost.pop("bus", 0) + 1
    assert lost == dict.fromkeys(("journald", "otel", "prometheus"), reached)
