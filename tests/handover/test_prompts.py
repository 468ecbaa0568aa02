"""The process that computes prompts: its pages stay leased while their write may read them."""

import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import Pipe

import numpy as np
import pytest
from tests.handover.pair import WAIT_S, HandWire, agree, links

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.requests import Sending, SendState
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools, mirrors, plan_of, torch_device
from hicache_dbg.repro.pd_prefill import Prompts
from hicache_dbg.repro.pd_process import Jobs
from hicache_dbg.repro.result import EngineStats
from hicache_dbg.repro.tiered import TieredCache

PAGES = 8


def test_a_turn_that_fails_keeps_its_pages_until_the_write_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its wait times out in the middle of the write, which runs on."""
    config = RunConfig(sessions=1, device_pages=PAGES, host_pages=PAGES, pd=True, timeout=0.01)
    plan, wire, other = plan_of(config), HandWire(), HandWire()
    wire.peer, other.peer = other, wire
    pools = [device_pools(plan.pools, PAGES, torch_device("cpu")) for _ in range(2)]
    tokens = np.arange(3 * config.pool_set.page_size) % 7
    with (
        closing(PoolGroup(mirrors(plan, pools[0]))) as ours,
        closing(PoolGroup(mirrors(plan, pools[1]))) as theirs,
        HiCacheController(ours) as controller,
    ):
        a, b, _ = links(ours, theirs, (wire, other))
        assert agree(a, b) == [None, None]
        free = controller.allocators["device"]
        with PrefillEnd(a) as end, DecodeEnd(b, lambda _pages: None) as decode:
            prompts = Prompts(TieredCache(controller), config.pool_set.model(pools[0]), end, config)
            decode.expect("r", np.arange(3), len(tokens))
            wait, sendings = PrefillEnd.wait, list[Sending]()

            def once_written(end: PrefillEnd, sending: Sending, timeout: float) -> None:
                sendings.append(sending)
                _until(lambda: sending.state is SendState.WRITING)
                wait(end, sending, timeout)

            monkeypatch.setattr(PrefillEnd, "wait", once_written)
            assert "not taken over" in str(prompts.answer(1, "r", tokens))
            prompts.let_go()
            assert free.available < PAGES
            wire.move_all()
            _until(lambda: sendings[0].over)
            prompts.let_go()
            assert free.available == PAGES


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end


def test_an_answer_that_nobody_waits_for_any_more_is_no_answer_to_the_next_prompt() -> None:
    """A prompt that timed out is answered late; the end of the process behind it has its stats."""
    ours, theirs = Pipe()
    with closing(Jobs(ours)) as jobs, theirs:
        tokens, stats = np.arange(3), EngineStats(loads=7)
        assert jobs.ask("r1", tokens, 0.0) is None
        theirs.send(("r1", 11))
        theirs.send(("r2", 22))
        assert jobs.ask("r2", tokens, WAIT_S) == 22
        theirs.send(("r3", 33))
        theirs.send(stats)
        assert jobs.end(WAIT_S) == stats
