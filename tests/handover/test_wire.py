"""NIXL's wire: which of its builds is taken, and whether its thread runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.handover.pair import require_nixl

from hicache_dbg.pools.handover import wire
from hicache_dbg.pools.handover.wire import packages_for


@pytest.mark.parametrize(
    ("cuda", "first"), [("12.8", "nixl_cu12"), ("13.0", "nixl_cu13"), (None, "nixl_cu12")]
)
def test_the_build_for_the_cuda_of_torch_is_tried_first(cuda: str | None, first: str) -> None:
    """The other one starts too, and then cannot reach a GPU's memory; all are tried."""
    assert packages_for(cuda)[0] == f"{first}._api"
    assert len(set(packages_for(cuda))) == 3


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("thread", [None, False, True])
def test_the_progress_thread_runs_as_asked_or_for_a_peer_elsewhere(
    monkeypatch: pytest.MonkeyPatch, near: bool, thread: bool | None
) -> None:
    """Within a host it would occupy a core; the benchmark measures what it costs."""
    require_nixl()
    api, asked = wire._api(), list[bool]()
    config = api.nixl_agent_config

    def seen(*, enable_prog_thread: bool, **more: object) -> object:
        asked.append(enable_prog_thread)
        return config(enable_prog_thread=enable_prog_thread, **more)

    monkeypatch.setattr(api, "nixl_agent_config", seen)
    memory = np.zeros(4096, np.uint8)
    wire.NixlWire([(memory.ctypes.data, 4096, 0)], near=near, thread=thread).close()
    assert asked == [not near if thread is None else thread]


def test_the_benchmark_hands_over_with_nixls_thread() -> None:
    """The command for the column in docs/handover.md moves every tile right, here in CPU memory."""
    require_nixl()
    row = ["--pairs", "1", "--requests", "1", "--pages", "2", "--consecutive", "--nixl-thread"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.handover_gpu", "--device", "cpu", *row],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = json.loads(done.stdout)
    assert {wrong for wrong, _ in told["wrong_and_all_tiles"].values()} == {0}
    assert told.keys() >= {"gb_s", "recorded_ms", "ratio"}
