"""Which runs a comparison has, and what the corruption moves with."""

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


#: What can be varied, and how a value is read; a ``ValueError`` says what is allowed.
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

#: What a run's ground truth does not depend on.
_NO_MATTER = RunConfig()


@dataclass(frozen=True, slots=True)
class _Planned:
    values: Values
    options: RunOptions
    config: RunConfig
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Combinations that can be run, and those that cannot, with why."""

    possible: tuple[_Planned, ...]
    impossible: tuple[tuple[Values, str], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One of the runs: the values it had, and what came of it."""

    values: Values
    outcome: Outcome

    @property
    def sessions_as_judged(self) -> object:
        """What became of each session, down to the first wrong token."""
        return self.outcome.result.reports


@dataclass(frozen=True, slots=True)
class Moves:
    """What one variable does to the corruption, everything else being equal.

    ``corrupted`` has, by value, corrupted sessions and all sessions of the runs with it. ``moves``
    says that the share of corrupted sessions differs between two runs that differ in this variable
    alone; ``same`` that not even a token of any session does.
    """

    variable: str
    corrupted: Mapping[str, tuple[int, int]]
    moves: bool
    same: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """All runs, and what each variable did; nothing is said of that where they were interrupted."""

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
        """Whether the last of the runs was."""
        return self.runs[-1].outcome.result.interrupted

    @property
    def exit_code(self) -> int:
        """That of the worst run."""
        codes = {exit_code(run.outcome) for run in self.runs}
        return next((code for code in (INTERRUPTED, CORRUPT, USAGE) if code in codes), OK)


def variables(given: Iterable[str]) -> Variables:
    """Read ``name=value,value`` items.

    Raises:
        ConfigError: a name that cannot be varied, a value that it does not take, or only one.
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
    """Every combination; those that the engine does not have are set aside.

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
    """Run what is possible, one after the other; ends early where one is interrupted."""
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
    """Of so many ``runs``, each as long as any other, ``before`` are done."""
    advance(before * total + done, runs * total, label)


def _truth_key(config: RunConfig, options: RunOptions) -> object:
    """Equal for runs whose ground truth is the same."""
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
