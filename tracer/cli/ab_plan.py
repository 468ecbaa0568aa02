"""Plan the runs of a comparison: which options vary, and every combination of their values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.levels import GateLevel
from hicache_dbg.tracer.cli.repro_options import RunOptions

__all__ = ["Plan", "Planned", "Values", "plan", "variables"]

Variables = Mapping[str, tuple[Any, ...]]
Values = Mapping[str, Any]


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number")
    return int(text)


def _level(text: str) -> GateLevel:
    try:
        return GateLevel(text)
    except ValueError:
        raise ValueError(f"one of {', '.join(GateLevel)}") from None


def _switch(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError("on or off")
    return text == "on"


#: The options that can be varied, with the parser of a value; its ``ValueError`` says what is allowed.
_VARIABLES: Mapping[str, Callable[[str], Any]] = {
    "gate": _level,
    "index_dtype": str,
    "layout": str,
    "io_backend": str,
    "pools": str,
    "device": str,
    "fault": str,
    "storage": str,
    "pd": _switch,
    **dict.fromkeys(
        (
            "sessions",
            "rounds",
            "ctx",
            "max_tokens",
            "seed",
            "requests",
            "scale",
            "device_pages",
            "host_pages",
        ),
        _whole,
    ),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One combination of values, and the run that it means."""

    values: Values
    job: TracedJob


@dataclass(frozen=True, slots=True)
class Plan:
    """The combinations that can be run, and those that cannot, each with the reason."""

    possible: tuple[Planned, ...]
    impossible: tuple[tuple[Values, str], ...]


def variables(items: Iterable[str]) -> Variables:
    """Parse ``name=value,value`` items.

    Raises:
        ConfigError: a name that cannot be varied, a value that is not allowed, or only one value.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for item in items:
        name, equals, text = item.partition("=")
        name = name.replace("-", "_")
        if name not in _VARIABLES or not equals:
            raise ConfigError(
                f"vary is {item!r}, expected NAME=A,B with a NAME of {', '.join(_VARIABLES)}"
            )
        values = tuple(dict.fromkeys(_value(name, part) for part in text.split(",")))
        if name in found or len(values) < 2:
            raise ConfigError(
                f"vary is {item!r}, expected {name} once, with two or more different values, such as "
                f"--vary {name}=A,B"
            )
        found[name] = values
    return found


def _value(name: str, text: str) -> Any:
    try:
        return _VARIABLES[name](text.strip())
    except ValueError as allowed:
        raise ConfigError(f"vary {name}: value is {text!r}, expected {allowed}") from None


def plan(options: RunOptions, varied: Variables) -> Plan:
    """Build every combination; those that the engine does not support are listed as impossible.

    Raises:
        ConfigError: a value is possible in no combination.
    """
    possible: list[Planned] = []
    impossible: list[tuple[Values, ConfigError]] = []
    for combination in product(*varied.values()):
        values = dict(zip(varied, combination, strict=True))
        try:
            possible.append(Planned(values, replace(options, **values).job()))
        except ConfigError as error:
            impossible.append((values, error))
    for refused, why in impossible:
        if not all(any(item in run.values.items() for run in possible) for item in refused.items()):
            raise why
    return Plan(tuple(possible), tuple((values, str(error)) for values, error in impossible))
