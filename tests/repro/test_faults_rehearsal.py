"""Every fault is found, named and located; its clean twin has no finding."""

import pytest

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import ALL_FAULTS, FAULTS, fault_named
from hicache_dbg.repro.faults.rehearsal import rehearse
from hicache_dbg.tracer.cli.selftest_matrix import row_of

#: Those that a run can survive without a wrong byte: found before they do harm, or harmless so far.
HARMLESS = {
    "layout_tag_not_forwarded",
    "sidecar_given_tokens_for_pages",  # the engine refuses the copy
    "all_gates_opened_with_the_first",  # the reader may be the slower one
    "a_getter_without_a_wait",
    "evicted_pages_freed_twice",  # the allocator refuses
    "match_unlocked_twice",
    "failed_backup_keeps_its_pages",
    "key_salted_by_the_process",  # pages are computed again
    "key_of_pairs_looked_up_by_tokens",
    "host_hits_dropped",
    "host_register_refused",  # a copy on a CPU needs no pinned memory
    "return_code_not_looked_at",
    "pinned_to_the_last_whole_chunk",
    "unpinned_while_in_use",
    "host_pool_sized_by_a_ratio",
    "loads_fall_back_to_single_copies",
}


@pytest.mark.parametrize("fault", ALL_FAULTS.values(), ids=ALL_FAULTS)
def test_a_fault_is_found_and_named_and_its_twin_is_clean(fault: Fault) -> None:
    """The first class that holds is the fault's, for the pools and pages that it harmed."""
    row = row_of(fault)
    assert row.found
    assert row.named, row.message
    assert (row.pool_right, row.pages_right) == (True, True), row.message
    assert row.clean_findings == 0
    assert row.moved > 0


@pytest.mark.parametrize(
    "name", sorted(n for n in FAULTS.keys() - HARMLESS if FAULTS[n].stage == "cache")
)
def test_a_fault_corrupts_without_any_tracer(name: str) -> None:
    """The faults are real: readers see wrong bytes, traced or not."""
    assert rehearse(ALL_FAULTS[name], lambda *_: None).wrong


@pytest.mark.parametrize(
    "layout", [Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT]
)
def test_the_stage_itself_is_sound(layout: Layout) -> None:
    """Without a fault every tile read back holds its bytes, and pages did come back."""
    seen = rehearse(None, lambda *_: None, layout=layout)
    assert (seen.wrong, seen.errors, seen.first_wrong_ns) == ([], [], 0)
    assert seen.loads > 0


def test_every_fault_says_what_it_is() -> None:
    """Names are unique, summaries are one line, and an unknown name is answered with the list."""
    assert set(FAULTS) <= set(ALL_FAULTS)
    for name, fault in ALL_FAULTS.items():
        assert fault.name == name
        assert fault.summary
        assert "\n" not in fault.summary
    with pytest.raises(ConfigError, match="hicache-dbg faults lists"):
        fault_named("no_such_fault")
