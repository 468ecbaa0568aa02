"""All faults by name."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults import (
    aborts,
    bit_flip,
    control_table,
    dead_store,
    dead_tier,
    double_free,
    failed_load,
    fix_on_dead_class,
    host_sized_for_fp8,
    index_space,
    key_identity,
    layout_order,
    pd_contract,
    pinning,
    rank_divergence,
    read_before_load,
    sidecar_missing,
    slot_reuse,
    stale_index,
    storage_damage,
    storage_keys,
    store_before_write,
)
from hicache_dbg.repro.faults.base import Fault

__all__ = ["ALL_FAULTS", "FAULTS", "fault_named"]

ALL_FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        fault.name: fault
        for fault in (
            host_sized_for_fp8.FAULT,
            fix_on_dead_class.FAULT,
            *layout_order.FAULTS,
            *index_space.FAULTS,
            *sidecar_missing.FAULTS,
            *slot_reuse.FAULTS,
            *aborts.FAULTS,
            *store_before_write.FAULTS,
            *read_before_load.FAULTS,
            *failed_load.FAULTS,
            *key_identity.FAULTS,
            *stale_index.FAULTS,
            *storage_keys.FAULTS,
            *storage_damage.FAULTS,
            *dead_store.FAULTS,
            *rank_divergence.FAULTS,
            *pd_contract.FAULTS,
            *pinning.FAULTS,
            *dead_tier.FAULTS,
            *control_table.FAULTS,
            *double_free.FAULTS,
            *bit_flip.FAULTS,
        )
    }
)
"""Every fault that ``selftest`` rehearses, in the order of their classes."""

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {name: fault for name, fault in ALL_FAULTS.items() if fault.stage not in {"ranks", "aborts"}}
)
"""Those that ``repro`` injects into sessions: in a cache, behind it, or on the way to another one."""


def fault_named(name: str) -> Fault:
    """Return the fault called ``name``.

    Raises:
        ConfigError: there is no fault of that name.
    """
    if name not in ALL_FAULTS:
        near = get_close_matches(name, ALL_FAULTS, n=2)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"fault is {name!r}, expected a name that hicache-dbg faults lists{meant}"
        )
    return ALL_FAULTS[name]
