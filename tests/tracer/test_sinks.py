"""Which sinks a run gets: what is asked for, else what answers; one that cannot be built is left out."""

import socket
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sinks import build_sinks


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


def test_a_sink_that_cannot_be_built_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """A recording folder that is a file costs the recording, and nothing else."""
    (tmp_path / "file").write_text("")
    settings = Settings(sinks=("recording", "stderr"), directory=tmp_path / "file")
    built = build_sinks(settings, lambda: ())
    assert [sink.name for sink in built.sinks] == ["stderr"]
    assert "recording" in built.refused


def test_gpu_counters_are_there_exactly_if_nvml_answers() -> None:
    """Where NVML is absent no GPU family is registered, so that nothing reads as zero errors."""
    from hicache_dbg.exporters.nvml import OK, Nvml

    assert names(Settings(sinks=("prometheus",))) == ["prometheus"]
    families = {family.name for family in REGISTRY.collect()}
    there = any(name.startswith("hicache_dbg_gpu") for name in families)
    assert there == (Nvml().state == OK)


@pytest.mark.parametrize("rank", [0, 3])
def test_building_twice_registers_once(rank: int) -> None:
    """A second run in the same process shares the metrics, whatever the rank."""
    settings = Settings(sinks=("prometheus",), rank=rank)
    assert names(settings) == names(settings) == ["prometheus"]
