"""Clean traffic in every combination gives no finding; the benchmark does the same for a million tiles."""

from typing import get_args

from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.radix_types import Policy
from hicache_dbg.repro.soak import CASES, GROUPS, soak
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings


def test_every_combination_has_a_case() -> None:
    """Each group is combined with each policy, and each layout, backend and eviction policy occurs."""
    met = {(case.group, case.policy) for case in CASES}
    assert met == {(group, policy) for group in GROUPS for policy in get_args(WritePolicy)}
    assert {case.layout for case in CASES} == set(Layout)
    assert {case.io_backend for case in CASES} == set(IoBackend)
    assert {case.eviction for case in CASES} == set(get_args(Policy))
    assert len(set(CASES)) == len(CASES)


def test_clean_traffic_is_silent() -> None:
    """No combination makes a finding, and no returned tile differs or is skipped."""
    sink = MemorySink()
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        for number, case in enumerate(CASES):
            soak(case, turns=16, seed=number)
        assert runtime.flush(60)
        health = runtime.session.bus.health()
    assert sink.of(Finding) == []
    assert (health.dropped, health.errors) == ({}, {})
    copies = sink.of(Copied)
    assert sum(copy.mismatched + sum(copy.skipped.values()) for copy in copies) == 0
    assert sum(copy.verified for copy in copies) > 10_000
