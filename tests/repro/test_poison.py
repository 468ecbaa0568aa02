"""Poisoned destinations: what a copy never wrote is seen, whatever it says of itself."""

from contextlib import suppress

import pytest
from tests.pools.caching import group_of, sequences, turn

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.repro.faults.base import Target
from hicache_dbg.repro.faults.poison import Unwritten, poisoned
from hicache_dbg.repro.faults.registry import FAULTS

#: Three readers of four pages each, on a device that holds seven: pages come and go.
CHOICES = [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def run(fault: str = "") -> tuple[list[Unwritten], HiCacheController]:
    """Turns on a cache whose copies have poisoned destinations."""
    with HiCacheController(group_of(7, 24)) as controller:
        if fault:
            FAULTS[fault].install(Target(controller))
        found = poisoned(controller)
        for tokens in sequences(CHOICES):
            with suppress(TransferError, AssertionError):
                turn(controller, tokens)
        with suppress(TransferError):
            controller.flush()
    return found, controller


def test_whole_copies_leave_no_poison() -> None:
    """Every slot of every page of every pool is written by its copy, in both directions."""
    found, controller = run()
    assert found == []
    assert controller.stats.loads > 0
    assert controller.stats.backups > 0


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        ("last_page_of_a_load_dropped", "load"),
        ("sidecar_not_loaded", "load"),
        ("sidecar_not_backed_up", "backup"),
    ],
)
def test_what_was_never_written_still_has_the_poison(fault: str, op: str) -> None:
    """The copy says that it is done; its destination says which page, layer and pool it is not."""
    found, controller = run(fault)
    assert found
    assert found[0].op == op  # a load of poison brings poison
    pools = {item.pool for item in found}
    names = list(controller.group.device)
    assert pools == set(names[1:] if fault.startswith("sidecar") else names)
