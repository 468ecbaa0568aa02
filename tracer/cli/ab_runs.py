"""Plan the runs of a comparison, execute them, and find what the corruption depends on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.exits import CORRUPT, INTERRUPTED, OK, USAGE
from hicache_dbg.tracer.cli.levels import GateLevel
from hicache_dbg.tracer.cli.progress import Advance
from hicache_dbg.tracer.cli.repro_options import RunOptions
from hicache_dbg.tracer.cli.repro_output import Outcome, exit_code
from hicache_dbg.tracer.cli.traced import traced_run

if TYPE_CHECKING:
    from hicache_dbg.repro.workload import Truth

__all__ = ["Compared", "Moves", "Plan", "Run", "plan", "variables"]

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

#: Neutral values for the settings that do not affect a run's ground truth.
_NO_MATTER = RunConfig()


@dataclass(frozen=True, slots=True)
class _Planned:
    values: Values
    options: RunOptions
    config: RunConfig
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The combinations that can be run, and those that cannot, each with the reason."""

    possible: tuple[_Planned, ...]
    impossible: tuple[tuple[Values, str], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: the values it had, and its outcome."""

    values: Values
    outcome: Outcome

    @property
    def sessions_as_judged(self) -> object:
        """The result of each session, down to the first wrong token."""
        return self.outcome.result.reports


@dataclass(frozen=True, slots=True)
class Moves:
    """The effect of one variable on the corruption, with everything else equal.

    Attributes:
        corrupted: by value, the corrupted sessions and all sessions of the runs with that value.
        moves: the share of corrupted sessions differs between two runs that differ in this variable
            alone.
        same: no token of any session differs between such runs.
    """

    variable: str
    corrupted: Mapping[str, tuple[int, int]]
    moves: bool
    same: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """All runs, and the effect of each variable.

    ``moves`` is empty if the runs were interrupted.
    """

    runs: tuple[Run, ...]
    moves: tuple[Moves, ...]
    impossible: tuple[tuple[Values, str], ...]
    planned: int

    @classmethod
    def of(cls, planned: Plan, advance: Advance) -> "Compared":
        """Run everything and compare."""
        runs = tuple(_all_runs(planned, advance))
        made = cls(runs, (), planned.impossible, len(planned.possible))
        if made.interrupted:
            return made
        return replace(made, moves=tuple(_moves(runs, name) for name in runs[0].values))

    @property
    def interrupted(self) -> bool:
        """Whether the last run was interrupted."""
        return self.runs[-1].outcome.result.interrupted

    @property
    def exit_code(self) -> int:
        """The exit code of the worst run."""
        codes = {exit_code(run.outcome) for run in self.runs}
        return next((code for code in (INTERRUPTED, CORRUPT, USAGE) if code in codes), OK)


def variables(given: Iterable[str]) -> Variables:
    """Parse ``name=value,value`` items.

    Raises:
        ConfigError: a name that cannot be varied, a value that is not allowed, or only one value.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for item in given:
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
    possible: list[_Planned] = []
    impossible: list[tuple[Values, ConfigError]] = []
    for combination in product(*varied.values()):
        values = dict(zip(varied, combination, strict=True))
        chosen = replace(options, **values)
        try:
            possible.append(_Planned(values, chosen, chosen.config(), chosen.injected()))
        except ConfigError as error:
            impossible.append((values, error))
    for refused, why in impossible:
        if not all(any(item in one.values.items() for one in possible) for item in refused.items()):
            raise why
    return Plan(tuple(possible), tuple((values, str(error)) for values, error in impossible))


def _all_runs(planned: Plan, advance: Advance) -> Iterator[Run]:
    """Execute the possible runs one after the other; stop after an interrupted one."""
    truths: dict[object, Truth | None] = {}
    for number, one in enumerate(planned.possible):
        label = " ".join(f"{name}={value}" for name, value in one.values.items())
        report = partial(_advance, advance, number, len(planned.possible), label)

        same = _truth_key(one.config, one.options)
        outcome = traced_run(
            one.config,
            one.fault,
            one.options.gate,
            report,
            trace=one.options.replay(),
            truth=truths.get(same),
        )
        truths[same] = outcome.result.truth
        yield Run(one.values, outcome)
        if outcome.result.interrupted:
            return


def _advance(
    advance: Advance, before: int, runs: int, label: str, done: int, total: int, _text: str
) -> None:
    """Report the progress of all runs, counting each run as equally long."""
    advance(before * total + done, runs * total, label)


def _truth_key(config: RunConfig, options: RunOptions) -> object:
    """Return a key that is equal for runs with the same ground truth."""
    neutral = replace(
        config,
        layout=config.pool_set.layouts[0],
        io_backend="",
        device_pages=None,
        host_pages=_NO_MATTER.host_pages,
        timeout=_NO_MATTER.timeout,
        tag="",
        storage="",
        pd=False,
        kill=False,
    )
    return neutral, options.trace, options.requests


def _moves(runs: tuple[Run, ...], variable: str) -> Moves:
    by_value: dict[str, tuple[int, int]] = {}
    groups: dict[object, list[Run]] = {}
    for run in runs:
        counts, value = run.outcome.result.sessions, str(run.values[variable])
        bad, total = by_value.get(value, (0, 0))
        by_value[value] = bad + counts.corrupted, total + counts.total
        others = tuple(item for item in run.values.items() if item[0] != variable)
        groups.setdefault(others, []).append(run)
    return Moves(
        variable,
        by_value,
        moves=any(len({_share(run) for run in group}) > 1 for group in groups.values()),
        same=all(
            run.sessions_as_judged == group[0].sessions_as_judged
            for group in groups.values()
            for run in group
        ),
    )


def _share(run: Run) -> float:
    counts = run.outcome.result.sessions
    return counts.corrupted / counts.total if counts.total else 0.0
