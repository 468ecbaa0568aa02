"""All faults by name."""

from collections.abc import Mapping
from types import MappingProxyType

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults import fix_on_dead_class, host_sized_for_fp8
from hicache_dbg.repro.faults.base import Fault

__all__ = ["FAULTS", "fault_named"]

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {fault.name: fault for fault in (host_sized_for_fp8.FAULT, fix_on_dead_class.FAULT)}
)
"""Every fault that can be injected."""


def fault_named(name: str) -> Fault:
    """The fault called ``name``.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in FAULTS:
        raise ConfigError(f"fault is {name!r}, expected one of {', '.join(FAULTS)}")
    return FAULTS[name]
