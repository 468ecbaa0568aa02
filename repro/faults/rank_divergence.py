"""One of several ranks that goes its own way."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch

from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.radix_types import Tokens
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault, Target, inside
from hicache_dbg.repro.faults.places import put
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]


def _fewer_pages(plan: EnginePlan) -> EnginePlan:
    """The rank sized its pools by its own free memory."""
    return replace(plan, host_pages=plan.host_pages - 3)


def _own_answer(target: Target) -> None:
    """The rank has let pages go by itself, for reasons of its own, and finds fewer than the others."""
    controller, state = target.controller, inside(target.controller)

    def match(tokens: Tokens) -> Match:
        with state.changed:
            state._let_go(state.tree.evict_host(1))  # noqa: SLF001 - what a rank does by itself
        return HiCacheController.match(controller, tokens)

    put(controller, "match", match)


def _skipped(target: Target) -> None:
    """The rank takes a way round a collective call that the others make."""
    call, made = target.collective, count(1)

    def collective(name: str) -> None:
        if next(made) != 3:
            call(name)

    target.collective = collective


def _rounds_otherwise(number: int) -> Callable[[Target], None]:
    """The rank's own kernel leaves another last bit in a pool that all ranks should have alike."""

    def install(target: Target) -> None:
        pool = target.controller.group.mirrors[number].device
        state = inside(target.controller)

        class Engine(TransferEngine):
            """Its kernel has written before the first backup."""

            def backup(self, op: CopyOp) -> None:
                """One bit of the page is the rank's own."""
                if op.after is not None:
                    op.after.synchronize()
                page = int(op.copies[number].device.page_ids(pool.geometry.slots_per_page)[0])
                component = pool.geometry.components[0].name
                pool.layer(component, 0)[page].view(torch.uint8).view(-1)[0] ^= 1
                super().backup(op)

        state.engine = Engine()

    return install


FAULTS = (
    Fault(
        name="rank_with_fewer_pages",
        cls=FaultClass.RANK_DIVERGENCE,
        summary="one rank sizes its host pools by its own free memory and has fewer pages",
        apply=_fewer_pages,
        stage="ranks",
    ),
    Fault(
        name="rank_evicts_by_itself",
        cls=FaultClass.RANK_DIVERGENCE,
        summary="one rank evicts host pages by itself, and finds fewer than the others",
        install=_own_answer,
        stage="ranks",
    ),
    Fault(
        name="rank_skips_a_collective",
        cls=FaultClass.RANK_DIVERGENCE,
        summary="one rank leaves a collective call out, and the others wait for it",
        install=_skipped,
        stage="ranks",
        pools=("",),
    ),
    Fault(
        name="rank_writes_other_index_k",
        cls=FaultClass.RANK_DIVERGENCE,
        summary="index-K is the same on every rank, and one of them writes another last bit",
        install=_rounds_otherwise(1),
        stage="ranks",
        pools=("dsa_index_k",),
    ),
)
