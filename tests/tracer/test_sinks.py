"""Which sinks a run gets: what is asked for, else what answers; one that cannot be built is tried again."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tests.dashboards.stack import free_port
from tests.pools.caching import group_of, sequences, turn
from tests.pools.forking import FORKS, in_child

from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.exporters.recording_format import read, recordings_in
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.tracer.events import Event, Health, Started
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import EVERYWHERE, Gate, Listen, Settings, SettingsError
from hicache_dbg.tracer.sink import SinkError
from hicache_dbg.tracer.sinks import PART_BYTES, PARTS_KEPT, LateSink, build_sinks


def names(settings: Settings) -> list[str]:
    """Names of the sinks that ``settings`` give."""
    return [sink.name for sink in build_sinks(settings, lambda: ()).sinks]


def test_without_a_journal_lines_go_to_standard_error(tmp_path: Path) -> None:
    """The default is stderr and Prometheus where no journald answers."""
    assert names(Settings(journald_socket=tmp_path / "absent")) == ["stderr", "prometheus"]


def test_a_journal_that_answers_is_preferred(tmp_path: Path) -> None:
    """The default is journald and Prometheus where the socket takes a connection."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        assert names(Settings(journald_socket=path)) == ["journald", "prometheus"]


def test_a_sink_that_cannot_be_built_loses_with_a_reason_until_it_can(tmp_path: Path) -> None:
    """A recording folder that is a file costs the recording, counted, until it is mended."""
    folder = tmp_path / "folder"
    folder.write_text("")
    settings = Settings(sinks=("recording", "stderr"), directory=folder)
    built = build_sinks(settings, lambda: ())
    late, _ = built.sinks
    assert list(built.refused) == ["recording"]
    assert "set HICACHE_DBG_DIR to a folder that" in built.refused["recording"]
    with pytest.raises(SinkError, match="still does not work") as caught:
        late.emit([Health(time_ns=1), Health(time_ns=2)])
    assert (late.name, caught.value.reason, caught.value.lost) == ("recording", "refused", 2)
    folder.unlink()
    late.emit([Health(time_ns=3)])
    late.close()
    (recording,) = recordings_in(folder)
    assert list(read(recording)) == [Health(time_ns=3)]


def test_a_sink_that_comes_late_gets_the_start_and_the_tracers_own_state(tmp_path: Path) -> None:
    """Without the start nobody could read what follows, nor would a scrape see what was lost."""
    asked: list[Callable[[], Health]] = []

    class Recording(RecordingSink):
        def watch(self, health: Callable[[], Health]) -> None:
            asked.append(health)

    late = LateSink("recording", lambda: Recording(tmp_path / "folder", "run"))
    late.watch(lambda: Health(time_ns=7))
    first, newer, other = (
        Started(time_ns=n, rank=rank, system="s", version="0", checksum="loads")
        for n, rank in ((1, 0), (2, 0), (3, 1))
    )
    lost_batches: list[list[Event]] = [[first], [newer, Health(time_ns=1)], [other]]
    for lost in lost_batches:
        with pytest.raises(SinkError):
            late.emit(lost)
    (tmp_path / "folder").mkdir()
    late.emit([Health(time_ns=4)])
    late.emit([Health(time_ns=5)])
    late.close()
    (recording,) = recordings_in(tmp_path / "folder")
    assert list(read(recording)) == [newer, other, Health(time_ns=4), Health(time_ns=5)]
    assert [health().time_ns for health in asked] == [7]


class Full(MemorySink):
    """A sink without room at first."""

    full = True

    def emit(self, events: Sequence[Event]) -> None:
        """Keep the events if there is room."""
        if self.full:
            raise SinkError("no room", reason="full", lost=len(events))
        super().emit(events)


def test_a_sink_that_fails_once_it_can_be_built_still_gets_the_start_records() -> None:
    """They are part of the first batch that is delivered, and of no later one."""
    sink, there = Full(), list[bool]()

    def build() -> Full:
        if not there:
            raise OSError("not there yet")
        return sink

    late = LateSink("memory", build)
    start = Started(time_ns=1, rank=0, system="s", version="0", checksum="loads")
    for batch in ([start], [Health(time_ns=2)]):
        with pytest.raises(SinkError):
            late.emit(batch)
        there.append(True)
    sink.full = False
    for time_ns in (3, 4):
        late.emit([Health(time_ns=time_ns)])
    assert sink.events == [start, Health(time_ns=3), Health(time_ns=4)]


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("9464", EVERYWHERE, 9464),
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("[::1]:9464", "::1", 9464),
        ("0", EVERYWHERE, 0),
    ],
)
def test_a_port_may_name_its_address(text: str, address: str, port: int) -> None:
    """HICACHE_DBG_PROMETHEUS_PORT is a port at every address, or at the one before the colon."""
    settings = Settings.from_environ({"HICACHE_DBG_PROMETHEUS_PORT": text})
    assert (settings.prometheus_port, settings.prometheus_port.address) == (port, address)


@pytest.mark.parametrize("text", ["9464:", "host:9464", "1.2.3:9464", "127.0.0.1:70000", ":x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """What is allowed is told, as for every variable."""
    with pytest.raises(SettingsError, match=r"ADDRESS:PORT such as 127\.0\.0\.1:9464"):
        Settings.from_environ({"HICACHE_DBG_PROMETHEUS_PORT": text})


def test_metrics_are_served_at_the_named_address_only() -> None:
    """A port on the loopback is not opened elsewhere, and rank n has the n-th port from it."""
    port = free_port()
    settings = Settings(sinks=("prometheus",), prometheus_port=Listen(port, "127.0.0.2"), rank=0)
    (sink,) = build_sinks(settings, lambda: ()).sinks
    with socket.socket() as caller:
        assert caller.connect_ex(("127.0.0.2", port)) == 0
    with socket.socket() as caller:
        assert caller.connect_ex(("127.0.0.1", port)) != 0
    sink.close()


def test_a_recording_is_bounded_by_default(tmp_path: Path) -> None:
    """A recording is cut into parts, so that a long run does not fill the disk."""
    (sink,) = build_sinks(Settings(sinks=("recording",), directory=tmp_path), lambda: ()).sinks
    sink.close()
    (path,) = recordings_in(tmp_path)
    assert path.name.endswith(".0000.jsonl")
    assert PART_BYTES * PARTS_KEPT == 4 << 30


def test_gpu_counters_are_there_exactly_if_nvml_answers() -> None:
    """Where NVML is absent the scrape says so, and nothing reads as zero errors."""
    from hicache_dbg.exporters.nvml import OK, Nvml

    assert names(Settings(sinks=("prometheus",))) == ["prometheus"]
    samples = [sample for family in REGISTRY.collect() for sample in family.samples]
    there = any(sample.name.startswith("hicache_dbg_gpu") for sample in samples)
    assert there == (Nvml().state == OK)
    states = [one.labels["state"] for one in samples if one.name == "hicache_dbg_nvml_state"]
    assert states == [Nvml().state]


@pytest.mark.parametrize("rank", [0, 3])
def test_building_twice_registers_once(rank: int) -> None:
    """A second run in the same process shares the metrics, whatever the rank."""
    settings = Settings(sinks=("prometheus",), rank=rank)
    assert names(settings) == names(settings) == ["prometheus"]


def _refused(tmp_path: Path, *more: str) -> Settings:
    """Ask for a recording where none can be made."""
    (tmp_path / "folder").write_text("")
    return Settings(gate=Gate.ON, sinks=("recording", *more), directory=tmp_path / "folder")


@pytest.mark.parametrize("beside", [(), ("prometheus",), ("stderr",)])
def test_the_last_line_is_on_standard_error_if_no_sink_took_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: tuple[str, ...]
) -> None:
    """The totals and the losses are said once; nobody scrapes a process that has ended."""
    with Runtime.start(_refused(tmp_path, *beside)), HiCacheController(group_of()) as cache:
        turn(cache, *sequences([[1, 2]]))
        cache.flush()
    closing = [text for text in capsys.readouterr().err.splitlines() if "closing" in text]
    (last,) = closing
    assert last.startswith("hicache-dbg: no sink took the last line: ") is (beside != ("stderr",))
    assert "hicache-dbg health rank=0 closing copies=" in last
    assert ("recording/refused:" in last) or ("recording/closed:" in last)


def test_a_process_without_pools_has_no_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither has one that imported the engine for something else, nor one that is stopped again."""
    runtime = Runtime.start(_refused(tmp_path))
    for _ in range(2):
        runtime.stop()
    assert "closing" not in capsys.readouterr().err


@FORKS
def test_a_child_that_copies_nothing_has_no_last_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dozen workers that load data would each repeat it."""
    with Runtime.start(_refused(tmp_path)) as runtime, HiCacheController(group_of()):
        assert in_child(runtime.stop) == ["None"]
        assert "closing" not in capfd.readouterr().err
    assert capfd.readouterr().err.count("closing") == 1
