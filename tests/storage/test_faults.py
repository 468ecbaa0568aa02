"""Every fault of a storage tier is found and named, in selftest and in a run."""

import pytest

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.registry import ALL_FAULTS
from hicache_dbg.repro.faults.storage_rehearsal import rehearse_storage
from hicache_dbg.repro.run import run
from hicache_dbg.tracer.cli.selftest_matrix import row_of
from hicache_dbg.tracer.events import FaultClass

FAULTS = {name: fault for name, fault in ALL_FAULTS.items() if fault.stage == "storage"}
#: Those that get past the store's own checks; all others are misses, and readers compute again.
HARMFUL = {
    "stored_bit_flips_unseen",
    "fetch_reported_without_its_bytes",
    "storage_names_cut_short_unseen",
}


@pytest.mark.parametrize("layout", [Layout.PAGE_FIRST, Layout.LAYER_FIRST])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_named_and_its_twin_is_clean(fault: Fault, layout: Layout) -> None:
    """The first class that holds is the fault's; without the fault there is no finding."""
    row = row_of(fault, layout=layout)
    assert (row.found, row.named, row.pool_right, row.clean_findings) == (True, True, True, 0), (
        row.message
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_harms_readers_only_past_the_stores_own_checks(name: str) -> None:
    """A store that checks its reads turns each fault into a miss, never a wrong byte."""
    assert bool(rehearse_storage(FAULTS[name], lambda *_: None).wrong) is (name in HARMFUL)


def test_all_classes_of_a_store_have_faults() -> None:
    """Each class that a store can show has a fault that is rehearsed."""
    assert {fault.cls for fault in FAULTS.values()} == {
        FaultClass.STORAGE_DAMAGE,
        FaultClass.KEY_IDENTITY,
        FaultClass.STALE_INDEX,
        FaultClass.FAILED_LOAD,
        FaultClass.DEAD_TIER,
    }


def test_a_fault_in_a_store_wants_a_store() -> None:
    """A run without storage refuses it and says what to add."""
    with pytest.raises(ConfigError, match="--storage file"):
        run(RunConfig(), FAULTS["stored_bit_flips"])
