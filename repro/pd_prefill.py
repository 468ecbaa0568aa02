"""The process that computes prompts and hands their pages over, for :mod:`hicache_dbg.repro.pd`.

It has the tiers: a session's next prompt finds the previous one on the device or on the host. A
fault in the cache is injected here.
"""

import secrets
import sys
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.channel import SILENCE_S
from hicache_dbg.pools.handover.errors import HandoverError
from hicache_dbg.pools.handover.link import Link, nixl_wire
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.repro.children import die_with_parent
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import device_pools, mirrors, plan_of, torch_device
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.registry import ALL_FAULTS
from hicache_dbg.repro.kernels import ToldKernels, Untold
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.pd_process import START_S
from hicache_dbg.repro.pd_wire import DyingWire, FaultyWire, scratch_for
from hicache_dbg.repro.run import stats_of
from hicache_dbg.repro.tiered import TieredCache
from hicache_dbg.repro.workload import Turn

if TYPE_CHECKING:
    from hicache_dbg.pools.handover.requests import Sending
    from hicache_dbg.repro.cache import Lease

__all__ = ["Prompts", "fingerprint", "serve"]

#: The request during which a prefill process is killed, if it is to be.
KILL_AT = 6
_TURN_ERRORS = (ArithmeticError, LookupError, OSError, RuntimeError, ValueError)


def fingerprint(config: RunConfig) -> str:
    """Return what both ends' models must share: the pool set's name determines the weights."""
    return f"repro/{config.pools}"


def serve(  # noqa: PLR0917 - a process gets its arguments in a row
    jobs: Connection,
    channel: Connection,
    config: RunConfig,
    fault: str,
    kill: bool,
    last_words: Callable[[], object] = lambda: None,
) -> None:
    """Compute and hand over what ``jobs`` brings, until it brings None.

    With ``kill`` the process gets SIGKILL in the middle of a write; ``last_words`` is called
    before.
    """
    die_with_parent()
    torch.set_num_threads(1)
    injected = ALL_FAULTS.get(fault)
    here = injected if injected is not None and injected.stage == "cache" else None
    plan = plan_of(config) if here is None else here.apply(plan_of(config))
    pools = device_pools(plan.pools, config.device_pages or 0, torch_device(config.device))
    with closing(PoolGroup(mirrors(plan, pools))) as group:
        controller = HiCacheController(group, io_backend=plan.io_backend)
        target = Target(controller)
        if injected is not None and injected.stage in {"cache", "handover"}:
            injected.install(target)
        kernels = ToldKernels(controller) if config.device == "cpu" else Untold()
        cache = TieredCache(controller, kernels=kernels)
        try:
            link = _link(group, channel, config, injected, target)
            link.agree()
            link.channel.silence_s = SILENCE_S
            if kill:
                link.wire = DyingWire(link.wire, KILL_AT, last_words)
            generation = controller.allocators["device"].generation
            with PrefillEnd(link, generation=generation) as end:
                prompts = Prompts(cache, config.pool_set.model(pools), end, config)
                prompts.run(jobs)
                jobs.send(stats_of(controller, cache))
            prompts.let_go()
        except (HandoverError, OSError):
            return  # decode reports why
        finally:
            _close(controller)


def _link(
    group: PoolGroup,
    channel: Connection,
    config: RunConfig,
    fault: Fault | None,
    target: Target,
) -> Link:
    name = fingerprint(config)
    if fault is None or fault.stage != "handover":
        return Link("prefill", group, channel, model=name, silence_s=START_S)
    scratch = scratch_for(group, config.pages_of(config.first_prompt + 4096))
    room = scratch.data_ptr(), scratch.nbytes, max(0, scratch.get_device())
    wire = FaultyWire(nixl_wire(group, channel, room), group, scratch, target.wire)
    return Link("prefill", group, channel, model=name, silence_s=START_S, wire=wire)


class Prompts:
    """Computes one prompt after another and hands its pages over."""

    def __init__(
        self, cache: TieredCache, model: Model, end: PrefillEnd, config: RunConfig
    ) -> None:
        self._failed: list[tuple[Lease, Sending | None]] = []  # their pages may still be read
        self._cache = cache
        self._model = model
        self._end = end
        self._config = config

    def run(self, jobs: Connection) -> None:
        """Serve until the other end says that there is no more, or is gone."""
        number = 0
        while True:
            try:
                job: tuple[str, np.ndarray[Any, np.dtype[np.int64]]] | None = jobs.recv()
            except EOFError:
                return
            if job is None:
                return
            number += 1
            self.let_go()
            request, tokens = job
            jobs.send((request, self.answer(number, request, tokens)))

    def let_go(self) -> None:
        """Free the pages of failed turns whose write is over."""
        failed, self._failed = self._failed, []
        for lease, sending in failed:
            if sending is None or sending.over:
                self._cache.abandon(lease)
            else:
                self._failed.append((lease, sending))

    def answer(self, number: int, request: str, tokens: np.ndarray) -> int | str:
        """Return the first token of the reply once the pages are written, or the failure."""
        lease = self._cache.begin(Turn(number, 0, tokens, max_tokens=1))
        if lease is None:
            return "no room at prefill"
        sending = None
        try:
            rest = torch.from_numpy(tokens[lease.cached :])
            token = self._model.prefill(rest, lease.cached, lease.table, lease.gate)
            pages = lease.table.numpy()[: self._config.pages_of(len(tokens))]
            trace = secrets.token_hex(16), secrets.token_hex(8)
            sending = self._end.send(request, pages, len(tokens), trace)
            self._end.wait(sending, self._config.timeout)
        except _TURN_ERRORS as error:
            self._failed.append((lease, sending))
            self.let_go()
            return f"{type(error).__name__}: {error}"
        self._cache.finish(lease, (token,))
        return token


def _close(controller: HiCacheController) -> None:
    try:
        controller.close()
    except TransferError as error:
        sys.stderr.write(f"hicache-dbg: prefill: {error}\n")
