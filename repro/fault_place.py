"""Where a fault is located, which option of a run provides that place, and what triggers it."""

from collections.abc import Mapping
from types import MappingProxyType

from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.base import Fault, Stage

__all__ = ["OPTIONS", "misplaced", "occasion_for"]

OPTIONS: Mapping[Stage, str] = MappingProxyType({"storage": "--storage file", "handover": "--pd"})
"""The option of ``repro`` without which a fault of a stage would have no place."""

_PLACES: Mapping[Stage, str] = MappingProxyType(
    {
        "storage": "between a cache and its store",
        "handover": "between prefill and decode",
        "aborts": "where decode gives a request up under its write",
        "ranks": "between ranks",
    }
)

_OCCASIONS: Mapping[Stage, str] = MappingProxyType(
    {
        "cache": "pages that are evicted and loaded back: fewer --device-pages or more --sessions",
        "storage": "pages that come back from the store: fewer --host-pages or more --sessions",
        "handover": "prompts of three pages or more: more --ctx or --rounds",
    }
)


def occasion_for(fault: Fault | None, config: RunConfig) -> str:
    """Return what the fault needs in order to take effect; empty if nothing or without a fault."""
    if fault is None or fault.right(config):
        return ""
    return fault.needs or _OCCASIONS.get(fault.stage, "")


def misplaced(fault: Fault, option: str = "") -> ConfigError:
    """Return the error for a run without the fault's place; ``option`` would provide it, if any."""
    add = f"add {option}, or " if option else ""
    return ConfigError(
        f"fault {fault.name} is {_PLACES[fault.stage]}, which this run does not have; {add}run "
        f"hicache-dbg selftest --fault {fault.name}"
    )
