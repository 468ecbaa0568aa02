"""The scheduler: turns that wait too long, fail or do not fit."""

from collections.abc import Callable

import pytest
from tests.repro.samples import make_model

from hicache_dbg.repro.cache import Lease, ResidentCache
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.scheduler import Scheduler
from hicache_dbg.repro.sessions import SessionWorkload
from hicache_dbg.repro.workload import End, Stop, Turn

CONFIG = RunConfig(sessions=3, rounds=2, ctx=20, max_tokens=6)
PAGES = 6


class _Failing(ResidentCache):
    """A cache whose ``begin`` or whose gates fail for one session."""

    def __init__(self, begin: bool) -> None:
        super().__init__(PAGES, 64)
        self._fails_at_begin = begin

    def begin(self, turn: Turn) -> Lease | None:
        if turn.session == 1 and self._fails_at_begin:
            raise ValueError("pages are broken")
        lease = super().begin(turn)
        if lease is None or turn.session != 1:
            return lease
        return Lease(lease.turn, lease.cached, lease.table, _closed)


def _closed(layer: int) -> None:
    raise OSError(f"layer {layer} never came")


def _run(
    cache: ResidentCache,
    *,
    max_running: int = 8,
    timeout: float = 100.0,
    clock: Callable[[], float] = lambda: 0.0,
) -> SessionWorkload:
    workload = SessionWorkload(CONFIG)
    Scheduler(
        make_model(PAGES)[0],
        cache,
        workload,
        max_running=max_running,
        timeout=timeout,
        on_answer=lambda: None,
        clock=clock,
    ).run()
    return workload


def _replies(workload: SessionWorkload) -> list[list[tuple[int, ...]]]:
    return [[r.tokens for r in t.replies] for t in workload.transcripts.values()]


def test_replies_do_not_depend_on_the_company() -> None:
    """One at a time, all at once, or two at a time: the same replies."""
    alone = _run(ResidentCache(PAGES, 64), max_running=1)
    together = _run(ResidentCache(PAGES, 64))
    assert _replies(alone) == _replies(together)
    assert all(len(reply) <= 6 for replies in _replies(alone) for reply in replies)


@pytest.mark.parametrize(
    ("begin", "error"),
    [(False, "OSError: layer 0 never came"), (True, "ValueError: pages are broken")],
)
def test_a_turn_that_fails_takes_no_other_with_it(begin: bool, error: str) -> None:
    """Its session ends with the error; the other replies are unchanged."""
    whole = _run(ResidentCache(PAGES, 64))
    workload = _run(_Failing(begin))
    failed = workload.transcripts[1]
    assert (failed.end, failed.replies[0].error) == (End.ERROR, error)
    assert [_replies(workload)[n] for n in (0, 2)] == [_replies(whole)[n] for n in (0, 2)]


def test_a_turn_that_can_never_fit_is_an_error() -> None:
    """With nothing running and still no room, it would wait for ever."""
    workload = _run(ResidentCache(0, 64))
    assert {t.end for t in workload.transcripts.values()} == {End.ERROR}
    assert workload.transcripts[0].replies[0].error == "no room though nothing runs"


def test_time_runs_out_for_running_and_waiting() -> None:
    """A turn not answered within the timeout ends its session, admitted or not."""
    ticks = iter(range(10_000))
    workload = _run(
        ResidentCache(PAGES, 64),
        max_running=1,
        timeout=2.5,
        clock=lambda: float(next(ticks)),
    )
    replies = [t.replies[-1] for t in workload.transcripts.values()]
    assert {reply.stop for reply in replies} == {Stop.ERROR}
    assert {reply.error for reply in replies} == {"no reply within the timeout of 2.5 s"}
