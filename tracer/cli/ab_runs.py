"""Execute the planned runs of a comparison, and find what the corruption depends on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hicache_dbg.repro.config import RunConfig
from hicache_dbg.tracer.cli.ab_plan import Plan, Values
from hicache_dbg.tracer.cli.exits import CORRUPT, INTERRUPTED, OK, USAGE
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.progress import Advance
from hicache_dbg.tracer.cli.repro_output import Outcome, exit_code
from hicache_dbg.tracer.cli.traced import traced_run

if TYPE_CHECKING:
    from hicache_dbg.repro.workload import Truth

__all__ = ["Compared", "Moves", "Run"]

#: Replaces the settings that do not affect a run's ground truth.
_DEFAULTS = RunConfig()


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
    def of(cls, plan: Plan, advance: Advance) -> "Compared":
        """Run everything and compare."""
        runs = tuple(_all_runs(plan, advance))
        compared = cls(runs, (), plan.impossible, len(plan.possible))
        if compared.interrupted:
            return compared
        return replace(compared, moves=tuple(_moves(runs, name) for name in runs[0].values))

    @property
    def interrupted(self) -> bool:
        """Whether the last run was interrupted."""
        return self.runs[-1].outcome.result.interrupted

    @property
    def exit_code(self) -> int:
        """The exit code of the worst run."""
        codes = {exit_code(run.outcome) for run in self.runs}
        return next((code for code in (INTERRUPTED, CORRUPT, USAGE) if code in codes), OK)


def _all_runs(plan: Plan, advance: Advance) -> Iterator[Run]:
    """Execute the possible runs one after the other; stop after an interrupted one."""
    truths: dict[object, Truth | None] = {}
    for number, planned in enumerate(plan.possible):
        label = " ".join(f"{name}={value}" for name, value in planned.values.items())
        key = _truth_key(planned.job)
        outcome = traced_run(
            replace(planned.job, truth=truths.get(key)),
            _within(advance, number, len(plan.possible), label),
        )
        truths[key] = outcome.result.truth
        yield Run(planned.values, outcome)
        if outcome.result.interrupted:
            return


def _within(advance: Advance, number: int, runs: int, label: str) -> Advance:
    """Return what one run reports its progress to: a part of all ``runs``, all equally long."""

    def advance_run(done: int, total: int, _text: str) -> None:
        advance(number * total + done, runs * total, label)

    return advance_run


def _truth_key(job: TracedJob) -> object:
    """Return a key that is equal for runs with the same ground truth."""
    neutral = replace(
        job.config,
        layout=job.config.pool_set.layouts[0],
        io_backend="",
        device_pages=None,
        host_pages=_DEFAULTS.host_pages,
        timeout=_DEFAULTS.timeout,
        tag="",
        storage="",
        pd=False,
        kill=False,
    )
    return neutral, None if job.trace is None else len(job.trace.requests)


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
