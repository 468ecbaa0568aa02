"""Compute the ground truth, and judge sessions against it.

The truth is the same model on the same workload with each session's cache kept on the device: no
host tier, no sharing, no eviction. The model's results depend neither on batches nor on chunks, so
any token that differs was computed from bytes that differ. A real model gives no such guarantee, so
it answers each turn anew in its own library's cache.
"""

from collections.abc import Callable, Mapping
from itertools import count

from hicache_dbg.repro.cache import ResidentCache
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools, torch_device
from hicache_dbg.repro.result import Divergence, SessionReport, Status
from hicache_dbg.repro.scheduler import Scheduler
from hicache_dbg.repro.workload import End, Reply, Transcript, Truth, Turn, Workload

__all__ = ["TRUTH_BATCH", "first_divergence", "ground_truth", "judge"]

TRUTH_BATCH = 16
"""Turns that are decoded together where nothing limits them: more is no faster a token."""


def ground_truth(
    config: RunConfig,
    workload: Workload,
    live_sessions: int,
    on_answer: Callable[[], None],
) -> Truth:
    """Answer ``workload`` with everything on the device, or without any pools.

    Args:
        config: of the run, for the pools, their storage types and their device.
        workload: produces the turns; its transcripts become the truth.
        live_sessions: how many sessions may hold pages at once, which sizes the device.
        on_answer: called after each answered turn.

    Raises:
        RuntimeError: a session failed for a reason unrelated to the tiers.
    """
    alone = config.pool_set.alone
    if alone is None:
        _on_the_device(config, workload, live_sessions, on_answer)
    else:
        _without_pools(alone, workload, on_answer)
    for session, transcript in workload.transcripts.items():
        if transcript.end is End.ERROR:
            raise RuntimeError(
                f"ground truth failed in session {session}: {transcript.replies[-1].error}"
            )
    return workload.transcripts


def _on_the_device(
    config: RunConfig, workload: Workload, live_sessions: int, on_answer: Callable[[], None]
) -> None:
    pool_set = config.pool_set
    pages = live_sessions * config.pages_of(workload.longest())
    geometries = pool_set.geometries(config.index_dtype)
    Scheduler(
        pool_set.model(device_pools(geometries, pages, torch_device(config.device))),
        ResidentCache(pages, pool_set.page_size),
        workload,
        max_running=TRUTH_BATCH,
        timeout=float("inf"),
        on_answer=on_answer,
    ).run()


def _without_pools(
    alone: Callable[[Turn], Reply], workload: Workload, on_answer: Callable[[], None]
) -> None:
    for step in count():
        for turn in workload.ready(step):
            workload.answered(turn, alone(turn), step)
            on_answer()
        if not workload.open():
            return


def judge(truth: Truth, transcripts: Mapping[int, Transcript]) -> tuple[SessionReport, ...]:
    """Judge every session of ``transcripts`` that has ended."""
    return tuple(
        _report(session, truth[session], transcript, transcript.end)
        for session, transcript in transcripts.items()
        if transcript.end is not None
    )


def _report(session: int, truth: Transcript, got: Transcript, end: End) -> SessionReport:
    divergence = first_divergence(truth, got) if end is not End.ERROR else None
    status = Status(end.value)
    if divergence is not None and end in {End.DONE, End.MAXROUNDS}:
        status = Status.LEAK
    error = got.replies[-1].error if got.replies else ""
    return SessionReport(session, status, len(got.replies), divergence, error)


def first_divergence(truth: Transcript, got: Transcript) -> Divergence | None:
    """Return where the replies first differ, or None."""
    for number in range(max(len(truth.replies), len(got.replies))):
        expected, actual = _tokens(truth, number), _tokens(got, number)
        for index in range(max(len(expected), len(actual))):
            pair = _at(expected, index), _at(actual, index)
            if pair[0] != pair[1]:
                return Divergence(number, index, *pair)
    return None


def _tokens(transcript: Transcript, number: int) -> tuple[int, ...]:
    return transcript.replies[number].tokens if number < len(transcript.replies) else ()


def _at(tokens: tuple[int, ...], index: int) -> int:
    return tokens[index] if index < len(tokens) else -1
