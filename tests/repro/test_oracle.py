"""The oracle: which sessions count as corrupted, and how that is reported."""

import pytest

from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.oracle import first_divergence, judge
from hicache_dbg.repro.result import (
    Divergence,
    EngineStats,
    RunResult,
    SessionReport,
    Status,
    corruption_line,
    wall_line,
)
from hicache_dbg.repro.workload import End, Reply, Stop, Transcript


def _transcript(*replies: tuple[int, ...], end: End | None = End.MAXROUNDS) -> Transcript:
    return Transcript([Reply(tokens, Stop.LENGTH) for tokens in replies], end)


@pytest.mark.parametrize(
    ("truth", "got", "where"),
    [
        ([(1, 2), (3,)], [(1, 2), (3,)], None),
        ([(1, 2), (3,)], [(1, 9), (3,)], Divergence(0, 1, 2, 9)),
        ([(1, 2), (3,)], [(1, 2), (4,)], Divergence(1, 0, 3, 4)),
        ([(1, 2)], [(1,)], Divergence(0, 1, 2, -1)),
        ([(1,)], [(1, 2)], Divergence(0, 1, -1, 2)),
        ([(1,)], [(1,), (2,)], Divergence(1, 0, -1, 2)),
    ],
)
def test_the_first_difference_is_found(
    truth: list[tuple[int, ...]], got: list[tuple[int, ...]], where: Divergence | None
) -> None:
    """It is the earliest round and token at which the replies differ, or one of them ends."""
    assert first_divergence(_transcript(*truth), _transcript(*got)) == where


def _status(truth: Transcript, got: Transcript) -> tuple[Status, bool]:
    (report,) = judge({0: truth}, {0: got})
    return report.status, report.corrupted


def test_statuses() -> None:
    """Equal tokens keep the session's own status, other tokens are a leak, errors are corrupt."""
    truth = _transcript((1, 2), end=End.DONE)
    assert _status(truth, _transcript((1, 2), end=End.DONE)) == (Status.DONE, False)
    assert _status(truth, _transcript((1, 3), end=End.MAXROUNDS)) == (Status.LEAK, True)
    assert _status(truth, _transcript((1,), end=End.NO_TOOL)) == (Status.NO_TOOL, True)
    assert _status(truth, Transcript([Reply((), Stop.ERROR, "x")], End.ERROR)) == (
        Status.ERROR,
        True,
    )
    empty = _transcript((1,), end=End.NO_TOOL)
    assert _status(empty, empty) == (Status.NO_TOOL, False)


def test_a_session_that_has_not_ended_is_not_judged() -> None:
    """After an interrupt only finished sessions count."""
    assert judge({0: _transcript((1,))}, {0: _transcript((1,), end=None)}) == ()


def _result(*statuses: Status, hits: int = 1) -> RunResult:
    reports = tuple(
        SessionReport(n, status, 1, Divergence(0, 0, 1, 2) if status is Status.LEAK else None)
        for n, status in enumerate(statuses)
    )
    return RunResult(RunConfig(), "", reports, EngineStats(host_hit_pages=hits), 12.34, 5.0)


def test_the_two_lines() -> None:
    """The lines hold the time, the statuses and the share of corrupted sessions, word for word."""
    leak, done, rounds = Status.LEAK, Status.DONE, Status.MAXROUNDS
    result = _result(done, leak, leak, rounds, rounds, rounds, Status.ERROR)
    assert (
        wall_line(result) == "wall=12.3s counts={'maxrounds': 3, 'leak': 2, 'done': 1, 'error': 1}"
    )
    assert corruption_line(result) == (
        "CORRUPTION sessions: 3/7 = 43% (leak=2 no_tool=0 error=1 ok-ish[done/maxrounds]=1/3)"
    )
    counts = result.sessions
    assert counts.total == sum(
        (counts.done, counts.maxrounds, counts.leak, counts.no_tool, counts.error)
    )


def test_nothing_at_all_is_zero_percent() -> None:
    """A run without sessions does not divide by zero."""
    assert corruption_line(_result()).startswith("CORRUPTION sessions: 0/0 = 0% ")


def test_tiers_count_as_used_from_the_first_host_hit() -> None:
    """A run without a host hit proves nothing, and says so."""
    assert _result(hits=1).tiers_used
    assert not _result(hits=0).tiers_used
