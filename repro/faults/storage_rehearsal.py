"""The setup for faults in a storage tier: a host that is too small, and a restart in the middle."""

from contextlib import closing
from dataclasses import replace
from tempfile import TemporaryDirectory

import torch

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.tier import StorageTier
from hicache_dbg.pools.streams import SimulatedStreams
from hicache_dbg.repro.engine import device_pools, mirrors
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.page_table import HostAccess
from hicache_dbg.repro.faults.rehearsal import (
    DEVICE_PAGES,
    CacheStage,
    Rehearsed,
    plan_of,
    sequence,
)

__all__ = ["rehearse_storage"]

HOST_PAGES = 6
SEQUENCES = 3
LIVES = 2
ROUNDS = 2
#: How long a reader waits for the store, and how long a failed store is left alone, in seconds.
PATIENCE_S, COOLDOWN_S = 1.0, 0.02


def rehearse_storage(
    fault: Fault | None,
    host_access: HostAccess,
    *,
    layout: Layout = Layout.PAGE_FIRST,
    seed: int = 0,
) -> Rehearsed:
    """Let three sequences take turns, with a host that holds one and a half, over two cache lifetimes.

    The arguments are those of :func:`~hicache_dbg.repro.faults.rehearsal.rehearse`.
    """
    whole: Rehearsed | None = None
    with TemporaryDirectory(prefix="hicache-dbg-") as folder:
        for _ in range(LIVES):
            seen = _life(fault, host_access, folder, layout, seed)
            whole = seen if whole is None else _both(whole, seen)
    assert whole is not None  # noqa: S101 - LIVES is at least 1
    return whole


def _life(
    fault: Fault | None, host_access: HostAccess, folder: str, layout: Layout, seed: int
) -> Rehearsed:
    plan = replace(plan_of(layout), host_pages=HOST_PAGES)
    pools = device_pools(plan.pools, DEVICE_PAGES, torch.device("cpu"))
    tier = StorageTier(
        FileStore(folder),
        Identity("rehearsal"),
        timeout=PATIENCE_S,
        cooldown_s=COOLDOWN_S,
    )
    with closing(PoolGroup(mirrors(plan, pools))) as group:
        controller = HiCacheController(group, io_backend=plan.io_backend, storage=tier)
        stage = CacheStage(controller, SimulatedStreams(seed), host_access)
        if fault is not None:
            fault.install(Target(controller, stage.table))
        try:
            for _ in range(ROUNDS):
                for name in range(SEQUENCES):
                    controller.prefetch(sequence(name))
                    stage.turn(sequence(name))
        finally:
            stage.guarded(controller.close)
        stats = controller.stats
        stage.seen.loads, stage.seen.moved = stats.loads, stats.loads + stats.backups
        return stage.seen


def _both(first: Rehearsed, second: Rehearsed) -> Rehearsed:
    return Rehearsed(
        first.pools,
        loads=first.loads + second.loads,
        moved=first.moved + second.moved,
        read=first.read + second.read,
        wrong=first.wrong + second.wrong,
        first_wrong_ns=first.first_wrong_ns or second.first_wrong_ns,
        errors=first.errors + second.errors,
    )
