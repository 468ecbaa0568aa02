"""A run over two processes: prompts are computed in one, replies in the other.

The other process runs :mod:`hicache_dbg.repro.pd_prefill`. This one has its own pools with other
page ids, and reads nothing of a request before all of it was written. A prefill process that dies
is replaced, and its outstanding request is repeated.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.errors import HandoverError, NixlMissing, PeerLost
from hicache_dbg.pools.indices import Ids
from hicache_dbg.repro.cache import Lease
from hicache_dbg.repro.engine import DeviceMissing, device_pools, mirrors, torch_device
from hicache_dbg.repro.faults.base import Target
from hicache_dbg.repro.model import LayerGate, Model, open_gate
from hicache_dbg.repro.pd_process import PrefillProcess
from hicache_dbg.repro.result import EngineStats
from hicache_dbg.repro.run import OnEngine, Run
from hicache_dbg.repro.scheduler import Scheduler
from hicache_dbg.repro.sizes import workload_of
from hicache_dbg.repro.workload import Turn

__all__ = ["PdRun"]

#: How often a turn is recomputed because its prefill process died.
RETRIES = 2


class PdRun(Run):
    """A run whose prompts are computed by another process.

    Attributes:
        begin: starts that process, given this one's pools; set before the run.
    """

    begin: Callable[[PoolGroup, HiCacheController, bool], PrefillProcess]

    def go_through_tiers(self, on_engine: OnEngine) -> None:
        """Build this end, start the other, run the workload, and close both whatever happens."""
        config, plan = self._config, self._plan
        workload = workload_of(config, None)
        self._transcripts = workload.transcripts
        pools = device_pools(plan.pools, config.device_pages or 0, _decodes(self._device))
        with closing(PoolGroup(mirrors(plan, pools))) as group:
            controller = HiCacheController(group, io_backend=plan.io_backend)
            target = Target(controller)
            prefills = _Prefills(lambda kill: self.begin(group, controller, kill))
            pages = _Pages(controller, target)
            try:
                on_engine(controller)
                if self._fault is not None and self._fault.stage == "handover":
                    self._fault.install(target)
                prefills.start(kill=config.kill)
                model = _Decoder(config.pool_set.model(pools), pages, prefills, config.timeout)
                Scheduler(
                    model,
                    pages,
                    workload,
                    max_running=config.max_running,
                    timeout=config.timeout,
                    on_answer=self._reporter(workload, "prefill to decode", self._phases - 1),
                ).run()
            except NixlMissing as error:
                raise DeviceMissing(str(error)) from error
            except HandoverError as error:
                self._engine_error = str(error)
            finally:
                self._stats = replace(prefills.close(), handed_pages=pages.handed)
                self._close(controller)


def _decodes(device: torch.device) -> torch.device:
    """Return the device for decoding and make it current: the last GPU; prefill uses the first."""
    if device.type == "cuda":
        torch.cuda.set_device(torch.cuda.device_count() - 1)
    return torch_device(device.type)


class _Prefills:
    """The prefill process, and its replacement if it dies."""

    def __init__(self, begin: Callable[[bool], PrefillProcess]) -> None:
        self._begin = begin
        self._current: PrefillProcess | None = None
        self._lost = 0

    def start(self, *, kill: bool) -> None:
        """Start a process; with ``kill`` it will die in the middle of a write."""
        self._current = self._begin(kill)

    def renew(self) -> None:
        """Replace the process that died."""
        self.current.close()
        self._lost += 1
        self.start(kill=False)

    @property
    def current(self) -> PrefillProcess:
        """The present process."""
        if self._current is None:
            raise HandoverError("no prefill process was started")
        return self._current

    def close(self) -> EngineStats:
        """End the process and return its engine's stats."""
        stats = self._current.close() if self._current is not None else EngineStats()
        return replace(stats, prefills_lost=self._lost)


class _Pages:
    """Decode's cache: pages for a turn's whole capacity, freed when the turn is answered."""

    def __init__(self, controller: HiCacheController, target: Target) -> None:
        self.handed = 0
        self._controller = controller
        self._target = target
        self._room = controller.group.device_pages
        self._page = controller.group.page_tokens
        self._turns: dict[int, Turn] = {}  # by identity of the lease's table
        self._gone: dict[int, int] = {}  # how many of its first pages the handover kept

    def begin(self, turn: Turn) -> Lease | None:
        """Allocate room for prompt and reply."""
        try:
            pages = self._controller.alloc_device(-(-turn.capacity // self._page), turn.session)
        except OutOfPages:
            return None
        lease = Lease(turn, 0, torch.from_numpy(pages))
        self._turns[id(lease.table)] = turn
        return lease

    def finish(self, lease: Lease, tokens: tuple[int, ...]) -> None:  # noqa: ARG002 - nothing is kept
        """Free the turn's pages: the next turn's come from prefill again."""
        self.abandon(lease)

    def abandon(self, lease: Lease) -> None:
        """Free the turn's pages, except those that the handover keeps."""
        table = lease.table
        del self._turns[id(table)]
        self._controller.free_device(table.numpy()[self._gone.pop(id(table), 0) :])

    def forget(self, session: int) -> None:
        """Do nothing: nothing is kept of a session."""

    def turn_of(self, table: torch.Tensor) -> Turn:
        """Return the turn to which a lease's table belongs."""
        return self._turns[id(table)]

    def for_prompt(self, table: torch.Tensor, request: str, tokens: int) -> Ids:
        """Return the pages of ``table`` that prefill is to write, by decode's own count."""
        count, _ = self._target.handed(request, -(-tokens // self._page))
        return table.numpy()[:count].copy()

    def lent(self, table: torch.Tensor, pages: Ids) -> None:
        """Lend the pages to the handover until they are written."""
        self._gone[id(table)] = len(pages)

    def admitted(self, table: torch.Tensor) -> None:
        """Take back pages that have been written."""
        self.handed += self._gone.pop(id(table))

    def again(self, table: torch.Tensor) -> None:
        """Replace the pages that the handover keeps."""
        count = self._gone.pop(id(table), 0)
        table[:count] = torch.from_numpy(self._controller.alloc_device(count))


class _Decoder(Model):
    """The model at this end; its prompts are computed at the other."""

    def __init__(self, model: Model, pages: _Pages, prefills: _Prefills, timeout: float) -> None:
        self._model = model
        self._pages = pages
        self._prefills = prefills
        self._timeout = timeout

    def prefill(
        self,
        tokens: torch.Tensor,
        start: int,  # noqa: ARG002 - nothing is cached here
        table: torch.Tensor,
        gate: LayerGate = open_gate,  # noqa: ARG002 - nothing is loaded here
    ) -> int:
        """Have the prompt computed and written here; retry if the prefill process dies."""
        turn = self._pages.turn_of(table)
        for trial in range(RETRIES + 1):
            request = f"s{turn.session}.r{turn.round}" + (f".{trial}" if trial else "")
            try:
                return self._asked(request, tokens.numpy(), table)
            except PeerLost:
                if trial == RETRIES:
                    raise
                self._prefills.renew()
                self._pages.again(table)
        raise AssertionError("unreachable")

    def _asked(self, request: str, tokens: np.ndarray, table: torch.Tensor) -> int:
        process = self._prefills.current
        pages = self._pages.for_prompt(table, request, len(tokens))
        receiving = process.end.expect(request, pages, len(tokens))
        self._pages.lent(table, pages)
        until = time.monotonic() + self._timeout
        answer = process.ask(request, tokens, self._timeout)
        if isinstance(answer, str):
            process.end.abort(receiving, answer)
        process.end.wait(receiving, max(0.0, until - time.monotonic()))
        if not isinstance(answer, int):
            raise HandoverError(f"request {request}: its pages are here and its first token is not")
        self._pages.admitted(table)
        return answer

    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor
    ) -> list[int]:
        """Compute one token of each of N sequences, over this end's pages."""
        return self._model.decode(tokens, positions, tables)
