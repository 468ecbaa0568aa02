"""Small complete runs: clean, with faults, interrupted."""

import threading
from dataclasses import replace

import pytest
from tests.repro.samples import SMALL, SMALLS

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.faults.registry import FAULTS
from hicache_dbg.repro.run import run
from hicache_dbg.repro.trace import Trace, TraceRequest
from hicache_dbg.repro.workload import Truth

_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _threads_of_other_tests() -> None:
    """Collect what other tests left to the garbage collector."""
    _before.clear()
    _before.update(threading.enumerate())


def _workers() -> list[str]:
    """Return threads that did not exist when the test began."""
    return [thread.name for thread in set(threading.enumerate()) - _before]


def test_a_run_leaves_no_thread(small_truth: Truth) -> None:
    """After a clean run with loads the engine's workers have ended."""
    result = run(SMALL, truth=small_truth)
    assert result.stats.loads > 0
    assert result.sessions.total == 6
    assert (result.sessions.corrupted, result.engine_error, _workers()) == (0, "", [])


@pytest.mark.parametrize("pools", ["mla_index_k", "deepseek_v4"])
@pytest.mark.parametrize("name", ["host_sized_for_fp8", "fix_on_dead_class"])
def test_a_host_sized_for_fp8_corrupts_bf16(
    truths: dict[str, Truth], name: str, pools: str
) -> None:
    """Sessions are corrupted without any error, and only after a load."""
    result = run(SMALLS[pools], FAULTS[name], truth=truths[pools])
    assert result.sessions.leak > 0
    assert result.sessions.error == 0
    assert result.engine_error == ""
    assert all(r.divergence is None or r.divergence.round > 0 for r in result.reports)


def test_the_same_formula_is_right_for_fp8() -> None:
    """With fp8 on the device the fault has no effect."""
    result = run(replace(SMALL, index_dtype="fp8"), FAULTS["host_sized_for_fp8"])
    assert result.tiers_used
    assert result.sessions.corrupted == 0


def test_without_pressure_the_fault_does_not_show(small_truth: Truth) -> None:
    """If all sessions fit, nothing is loaded: no corruption, and the run says it proved nothing."""
    result = run(replace(SMALL, device_pages=32), FAULTS["host_sized_for_fp8"], truth=small_truth)
    assert not result.tiers_used
    assert result.sessions.corrupted == 0


def test_the_engine_is_shown_before_its_first_copy(small_truth: Truth) -> None:
    """The callback gets the controller, with its host classes, before anything has moved."""
    seen: list[tuple[int, list[str]]] = []

    def watch(controller: HiCacheController) -> None:
        classes = [type(pool).__name__ for pool in controller.group.host.values()]
        seen.append((controller.stats.backups + controller.stats.loads, classes))

    run(SMALL, FAULTS["fix_on_dead_class"], on_engine=watch, truth=small_truth)
    assert seen == [(0, ["LatentHostPool", "PagedHostPool"])]


def test_an_error_of_the_watcher_leaves_nothing_running(small_truth: Truth) -> None:
    """It is raised from the run, and the engine's threads have ended."""

    def refuse(_controller: HiCacheController) -> None:
        raise RuntimeError("not like this")

    with pytest.raises(RuntimeError, match="not like this"):
        run(SMALL, on_engine=refuse, truth=small_truth)
    assert _workers() == []


def test_progress_goes_up_to_its_end() -> None:
    """Every answered turn is reported; ground truth comes first, and the last report is complete."""
    seen: list[tuple[int, int, str]] = []
    run(replace(SMALL, sessions=3), on_progress=lambda *report: seen.append(report))
    done = [report[0] for report in seen]
    assert done == sorted(done)
    assert seen[-1][:2] == (12, 12)
    assert list(dict.fromkeys(report[2] for report in seen)) == [
        "ground truth",
        "through the tiers",
    ]


def test_an_interrupt_leaves_a_closed_engine_and_what_had_ended(small_truth: Truth) -> None:
    """After Ctrl-C the partial result is judged, and no thread is left."""

    def stop(done: int, total: int, _text: str) -> None:
        if done * 2 >= total:
            raise KeyboardInterrupt

    result = run(SMALL, on_progress=stop, truth=small_truth)
    assert result.interrupted
    assert result.sessions.total < 6
    assert result.sessions.corrupted == 0
    assert result.stats.backups > 0
    assert _workers() == []


def test_an_interrupt_of_the_ground_truth_judges_nothing() -> None:
    """Without ground truth there is nothing to compare with."""

    def stop(_done: int, _total: int, _text: str) -> None:
        raise KeyboardInterrupt

    result = run(SMALL, on_progress=stop)
    assert (result.interrupted, result.truth, result.reports) == (True, None, ())


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("device_pages", RunConfig(device_pages=11)),
        ("host_pages", RunConfig(host_pages=11)),
    ],
)
def test_pools_too_small_for_one_session_are_refused(name: str, config: RunConfig) -> None:
    """The message has the setting, the pages given and the pages needed."""
    with pytest.raises(ConfigError) as error:
        run(config)
    assert str(error.value) == (
        f"{name} is 11, but one session needs 12 pages (706 tokens at most); "
        f"raise {name} or ask for less"
    )


@pytest.mark.parametrize("config", [RunConfig(device_pages=10**8), RunConfig(host_pages=10**8)])
def test_pools_that_exceed_the_memory_are_refused(config: RunConfig) -> None:
    """One line has the size needed and the memory available, before anything is built."""
    with pytest.raises(
        ConfigError, match=r"take \d+\.\d GB of this machine, which has \d+\.\d GB; "
    ):
        run(config)


def test_one_session_runs_in_exactly_the_pages_it_needs(small_truth: Truth) -> None:
    """The size named by the refusal is enough for many sessions, one after the other."""
    result = run(replace(SMALL, device_pages=4), truth=small_truth)
    assert result.sessions.corrupted == 0
    assert result.sessions.error == 0


def test_a_replay_loads_what_the_trace_shares() -> None:
    """A prefix evicted to the host is hit there when its hash ids recur."""
    old, new = tuple(range(10)), tuple(range(10, 20))
    requests = tuple(
        TraceRequest(time, 5120, 64, ids) for time, ids in enumerate([old, new, old, new])
    )
    config = RunConfig(device_pages=4, host_pages=64, max_running=1)
    result = run(config, trace=Trace(requests))
    assert result.stats.host_hit_pages == 4
    assert result.counts == {"done": 4}
    assert result.sessions.corrupted == 0
