"""One load that reaches ranks by broadcast: what is known of it, and the statements about it."""

import time
from dataclasses import dataclass, field

import torch

from hicache_dbg.tracer.attach.sglang.late_indices import Kept
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.events import DIRECTION, Copied, Op, SkipReason, Topic
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.view import View

__all__ = ["POOL", "Load", "copied", "state"]

POOL = "kv"


@dataclass(slots=True, eq=False)
class Load:
    """What is broadcast in one load.

    Args:
        name: the same on all ranks.
        layers: number of layers in the load.
        indices: the device indices that it brings, if they are known from its start.
        arrived: layers that have arrived, by component, in order of their first arrival.
        digests: by component and layer; their values are filled in on the bus's thread.
        pages: number of pages in the load.
        stated: number of pages, from the first one on, that are digested.
        bytes: bytes that have arrived.
        dtype: dtype of the tensor that arrived last.
        began: start of the load, on the clock of ``time.perf_counter``.
    """

    name: str
    layers: int
    indices: torch.Tensor | None = None
    arrived: dict[str, list[int]] = field(default_factory=dict)
    digests: dict[tuple[str, int], Kept] = field(default_factory=dict)
    pages: int = 0
    stated: int = 0
    bytes: int = 0
    dtype: str = ""
    began: float = field(default_factory=time.perf_counter)

    def add(self, component: str, layer: int, view: View, pages: int) -> None:
        """Count a layer that has arrived, with ``pages`` pages in the form of ``view``."""
        self.arrived.setdefault(component, []).append(layer)
        self.pages, self.dtype = pages, view.dtype
        self.bytes += pages * view.page_span


def state(
    session: SglangSession,
    load: Load,
    component: str,
    layers: list[int],
    kept: dict[tuple[str, int], Kept],
) -> None:
    """State the digests of each page, one value per layer."""
    slots = [
        (layer, kept[component, layer].slots) for layer in layers if (component, layer) in kept
    ]
    known = [(layer, found) for layer, found in slots if found is not None]
    for page in range(min(map(len, (found for _, found in known)), default=0)):
        session.state(
            Topic.TILES,
            [f"{int(found[page]) & (1 << 64) - 1:016x}" for _, found in known],
            request=load.name,
            pool=POOL,
            component=component,
            page=page,
            layers=tuple(layer for layer, _ in known),
        )


def copied(session: SglangSession, load: Load, cls: str, digested: int) -> Copied:
    """Return the event for a load on a rank that has no host copy of it.

    ``cls`` is the class that received it, ``digested`` the number of its digested tensors.
    """
    source, destination = DIRECTION[Op.LOAD]
    tiles = sum(len(layers) for layers in load.arrived.values()) * load.pages
    witnessed = digested * load.stated
    why = SkipReason.SAMPLED_OUT if witnessed else SkipReason.UNWITNESSED
    why = SkipReason.OFF if session.settings.checksum is Checksum.OFF else why
    return Copied(
        time_ns=time.time_ns(),
        rank=session.settings.rank,
        pool=POOL,
        op=Op.LOAD,
        token_granular=False,
        layout="none",
        h=load.pages,
        d=load.pages,
        slot_page=1,
        unit="page",
        pages=load.pages,
        item_bytes=load.bytes // max(1, tiles) if tiles else 0,
        dtype=load.dtype,
        layers=load.layers,
        cls=cls,
        io_backend="broadcast",
        src=source,
        dst=destination,
        bytes=load.bytes,
        duration_us=(time.perf_counter() - load.began) * 1e6,
        witnessed=witnessed,
        skipped={why.value: tiles - witnessed} if tiles > witnessed else {},
    )
