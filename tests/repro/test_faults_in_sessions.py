"""Every single-cache fault, injected into agent sessions: found, named first, and pages moved."""

import pytest
from tests.repro.samples import SMALL

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults.registry import ALL_FAULTS, FAULTS, fault_named
from hicache_dbg.repro.result import RunResult
from hicache_dbg.repro.run import run
from hicache_dbg.repro.workload import Truth
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

#: Those that the sessions of a machine without a GPU can show.
INJECTED = sorted(name for name, fault in FAULTS.items() if fault.stage == "cache")


def traced(name: str, truth: Truth) -> tuple[RunResult, list[Finding]]:
    """Return the findings of a small run with a fault, or "" for none."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        attachment = runtime.attachment
        assert isinstance(attachment, HiCacheAttachment)
        result = run(
            SMALL,
            fault_named(name) if name else None,
            truth=truth,
            host_access=attachment.lifetimes.host_access,
        )
        assert runtime.flush()
    return result, sink.of(Finding)


@pytest.mark.parametrize("name", INJECTED)
def test_a_fault_in_sessions_is_found_and_named(name: str, small_truth: Truth) -> None:
    """The first class that holds is the fault's; the run backed pages up."""
    result, found = traced(name, small_truth)
    order = list(FaultClass)
    assert min((finding.cls for finding in found), key=order.index) is FAULTS[name].cls
    assert result.stats.backups > 0


def test_the_clean_twin_is_silent(small_truth: Truth) -> None:
    """Without a fault nothing is found, and pages came back from the host."""
    result, found = traced("", small_truth)
    assert found == []
    assert result.stats.loads > 0
    assert result.sessions.corrupted == 0


@pytest.mark.parametrize("name", sorted(ALL_FAULTS.keys() - set(INJECTED)))
def test_what_sessions_cannot_show_is_refused(name: str, small_truth: Truth) -> None:
    """A fault without effect in sessions is refused, and the message says where it has one."""
    with pytest.raises(ConfigError, match="selftest"):
        run(SMALL, ALL_FAULTS[name], truth=small_truth)
