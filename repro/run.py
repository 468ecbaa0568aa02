"""One run from start to end: ground truth, the tiered engine, judgement."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.repro.chats.workload import exchanges
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.engine import EnginePlan, device_pools, mirrors, plan_of, torch_device
from hicache_dbg.repro.fault_place import OPTIONS, misplaced, occasion_for
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.page_table import HostAccess, PageTable, Uploads, untold
from hicache_dbg.repro.kernels import Kernels, ToldKernels, Untold
from hicache_dbg.repro.oracle import ground_truth, judge
from hicache_dbg.repro.result import EngineStats, Exchange, RunResult
from hicache_dbg.repro.scheduler import Scheduler
from hicache_dbg.repro.sizes import sized, truth_sessions, workload_of
from hicache_dbg.repro.storage import storage_tier
from hicache_dbg.repro.tiered import TieredCache
from hicache_dbg.repro.trace import Trace
from hicache_dbg.repro.workload import Transcript, Truth, Workload
from hicache_dbg.tracer.events import FaultClass

__all__ = ["OnEngine", "OnProgress", "Run", "carry_out", "run", "stats_of"]

OnProgress = Callable[[int, int, str], None]
"""Called with units done, units in all and what is being done, after each answered turn."""

OnEngine = Callable[[HiCacheController], None]
"""Called with the engine once it is built, before its first copy."""


def run(
    config: RunConfig,
    fault: Fault | None = None,
    trace: Trace | None = None,
    on_progress: OnProgress | None = None,
    on_engine: OnEngine | None = None,
    *,
    truth: Truth | None = None,
    host_access: HostAccess = untold,
) -> RunResult:
    """Run agent sessions, or the requests of ``trace``, through the engine and judge every reply.

    An interrupt (Ctrl-C) ends the run, not the caller: the engine is closed and the result holds
    what had ended by then, with ``interrupted`` set.

    Args:
        config: of the run; None values become the defaults of pool set and workload.
        fault: modifies how the engine is built, or the engine itself.
        trace: replaces the agent sessions.
        on_progress: see :data:`OnProgress`.
        on_engine: see :data:`OnEngine`.
        truth: ``RunResult.truth`` of a run with the same workload, pools and ``index_dtype``, to
            avoid recomputing it.
        host_access: see :data:`HostAccess`; called only if the fault is in a page table.

    Raises:
        ConfigError: the pools do not hold one session, the trace is empty, or the fault does not
            affect the pool set.
        DeviceMissing: the requested device or store is not available.
    """
    job = Run(sized(config, trace), fault, trace, on_progress or _silent, truth, host_access)
    return carry_out(job, on_engine)


def carry_out(job: "Run", on_engine: OnEngine | None = None) -> RunResult:
    """Execute a run, and judge what has ended when it ends or is interrupted."""
    with one_thread():
        try:
            job.find_truth()
            job.go_through_tiers(on_engine or _unobserved)
        except KeyboardInterrupt:
            job.interrupted = True
    return job.result()


class Run:
    """A run in progress: what is known so far can be judged at any moment."""

    def __init__(  # noqa: PLR0917
        self,
        config: RunConfig,
        fault: Fault | None,
        trace: Trace | None,
        on_progress: OnProgress,
        truth: Truth | None,
        host_access: HostAccess,
    ) -> None:
        self.interrupted = False
        self._config = config
        self._fault = fault
        self._trace = trace
        self._device = torch_device(config.device)
        self._plan = _applied(fault, config)
        self._host_access = host_access
        self._on_progress = on_progress
        self._phases = 1 if truth is not None else 2
        self._truth = truth
        self._transcripts: Mapping[int, Transcript] = {}
        self._stats = EngineStats()
        self._engine_error = ""
        self._started = time.perf_counter()
        self._truth_seconds = 0.0

    def find_truth(self) -> None:
        """Compute the ground truth, unless it was given."""
        if self._truth is not None:
            return
        workload = workload_of(self._config, self._trace)
        live = truth_sessions(workload, self._trace)
        report = self._reporter(workload, "ground truth", phase=0)
        self._truth = ground_truth(self._config, workload, live, report)
        self._truth_seconds = time.perf_counter() - self._started

    def go_through_tiers(self, on_engine: OnEngine) -> None:
        """Build the engine, run the workload through it, and close it whatever happens."""
        config = self._config
        workload = workload_of(config, self._trace)
        self._transcripts = workload.transcripts
        plan = self._plan
        pools = device_pools(plan.pools, config.device_pages or 0, self._device)
        with closing(PoolGroup(mirrors(plan, pools))) as group, storage_tier(config) as tier:
            controller = HiCacheController(group, io_backend=plan.io_backend, storage=tier)
            kernels = ToldKernels(controller) if config.device == "cpu" else Untold()
            cache = TieredCache(controller, kernels=kernels)
            try:
                on_engine(controller)
                cache = self._installed(controller, cache, kernels)
                Scheduler(
                    config.pool_set.model(pools),
                    cache,
                    workload,
                    max_running=config.max_running,
                    timeout=config.timeout,
                    on_answer=self._reporter(workload, "through the tiers", self._phases - 1),
                ).run()
            finally:
                self._close(controller)
                self._stats = stats_of(controller, cache)

    def _installed(
        self, controller: HiCacheController, cache: TieredCache, kernels: Kernels
    ) -> TieredCache:
        """Inject the fault into the engine, or into the page tables that the cache uploads."""
        if self._fault is None:
            return cache
        in_table = self._fault.cls is FaultClass.CONTROL_TABLE
        table = PageTable(controller.group.device_pages) if in_table else None
        self._fault.install(Target(controller, table))
        if table is None:
            return cache
        uploads = Uploads(table, self._host_access, controller.flush)
        return TieredCache(controller, uploads, kernels)

    def result(self) -> RunResult:
        """Judge what has ended."""
        truth = self._truth
        return RunResult(
            config=self._config,
            fault=self._fault.name if self._fault else "",
            reports=judge(truth, self._transcripts) if truth is not None else (),
            stats=self._stats,
            wall_seconds=time.perf_counter() - self._started,
            truth_seconds=self._truth_seconds,
            engine_error=self._engine_error,
            interrupted=self.interrupted,
            truth=truth,
            exchanges=self._exchanges(),
            occasion=occasion_for(self._fault, self._config),
        )

    def _exchanges(self) -> tuple[Exchange, ...]:
        """Return the conversation, if a real model took part."""
        if not self._config.model or self._truth is None:
            return ()
        return tuple(exchanges(self._truth, self._transcripts))

    def _close(self, controller: HiCacheController) -> None:
        try:
            controller.close()
        except TransferError as error:
            self._engine_error = str(error)

    def _reporter(self, workload: Workload, text: str, phase: int) -> Callable[[], None]:
        def report() -> None:
            done, total = workload.progress()
            self._on_progress(done + phase * total, total * self._phases, text)

        return report


def _applied(fault: Fault | None, config: RunConfig) -> EnginePlan:
    """Return the engine plan with the fault applied.

    Raises:
        ConfigError: the fault has no place in a run like this.
    """
    plan = plan_of(config)
    if fault is None:
        return plan
    if config.pd and fault.stage in {"cache", "handover"}:
        # This is decode's plan; a fault in the cache is injected at prefill, which has the tiers.
        return fault.apply(plan) if fault.stage == "handover" else plan
    if fault.stage == "storage" and config.storage:
        return fault.apply(plan)
    if fault.stage != "cache":
        # A run over two processes takes no store, so no option can help there.
        raise misplaced(fault, "" if config.pd else OPTIONS.get(fault.stage, ""))
    return fault.apply(plan)


def stats_of(controller: HiCacheController, cache: TieredCache) -> EngineStats:
    """Return what a cache and its engine did."""
    done = controller.stats
    return EngineStats(
        loads=done.loads,
        backups=done.backups,
        host_hit_pages=cache.host_hit_pages,
        device_hit_pages=cache.device_hit_pages,
        evicted_pages=done.evicted,
        **_storage_stats(controller),
    )


def _storage_stats(controller: HiCacheController) -> dict[str, Any]:
    if controller.storage is None:
        return {}
    done = controller.storage.stats
    return {
        "stored_pages": done.stored_pages,
        "fetched_pages": done.fetched_pages,
        "storage_misses": dict(done.misses),
        "unstored": dict(done.unstored),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread: the model's steps are small, and workers need cores.

    With more threads, every small operation ends in a barrier, which becomes ten times as slow as
    soon as another process wants the same cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _silent(_done: int, _total: int, _text: str) -> None:
    """Ignore progress."""


def _unobserved(_controller: HiCacheController) -> None:
    """Leave the engine as it is."""
