"""Where a fault is, and which option of a run brings that place."""

from collections.abc import Mapping
from types import MappingProxyType

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults.base import Fault, Stage

__all__ = ["OPTIONS", "misplaced"]

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


def misplaced(fault: Fault, option: str = "") -> ConfigError:
    """What to say of a run that lacks the fault's place; ``option`` would bring it, if any would."""
    add = f"add {option}, or " if option else ""
    return ConfigError(
        f"fault {fault.name} is {_PLACES[fault.stage]}, which this run does not have; {add}run "
        f"hicache-dbg selftest --fault {fault.name}"
    )
