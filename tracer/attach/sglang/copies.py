"""One call of a pool's copy method as a :class:`~hicache_dbg.tracer.mirror.Copy`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.paths import NOTHING, Call, Path
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord
from hicache_dbg.tracer.attach.sglang.whose import HERE, Request
from hicache_dbg.tracer.checks.index_space import IndexUse
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import Copy

__all__ = ["Given", "Reading", "RequestCopy", "layer_of", "read_call"]


@dataclass(slots=True, eq=False)  # not frozen: that would take three times as long
class Given:
    """The arguments of a copy method, and the requests (``whom``) that the operation serves."""

    pool: Any
    method: str
    host_indices: torch.Tensor
    device_indices: torch.Tensor
    io_backend: str
    op: Op
    device_pool: Any = None
    whom: tuple[Request, ...] = field(default_factory=lambda: HERE.carried)


@dataclass(slots=True, eq=False)
class RequestCopy(Copy):
    """A copy, and the names of the requests that it serves."""

    names: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Reading:
    """A call as a copy, and how it used its indices, where that needs a check.

    ``use`` is None if the indices cannot be read here, or are whole pages within the pool.
    ``tokens`` is how many of the pool's indices the call covers.
    """

    copy: Copy
    use: IndexUse | None
    tokens: int


def layer_of(pool: Any, record: PoolRecord, named: dict[str, Any]) -> int | None:
    """Return the layer in the views for a load's layer number; None if the pool moves nothing for it."""
    if record.geometry is None:
        number = int(named["layer_id"])
        return number if number < record.mirror.layers else None
    layer = record.geometry.positions.get(int(named["layer_id"]))
    targets = getattr(pool, "target_layer_num", None)
    if layer is not None and targets is not None and layer >= targets and not named.get("is_draft"):
        return None  # a layer of a draft model, in a call for the target's
    return layer


def read_call(
    record: PoolRecord,
    given: Given,
    op_id: int,
    *,
    layers: tuple[int, ...] | None = None,
    generations: Callable[[Pages], Pages] | None = None,
) -> Reading:
    """Return what the call moves: all layers; a load that moves fewer is reduced later.

    For a call that is over, ``layers`` are those it moved, and ``generations`` returns the generations
    of host pages as it began.
    """
    host, device, readable = _indices(given)
    path = _path(record, given, host, device)
    placed = path if readable else _unplaced(path)
    if layers is None:
        layers = tuple(range(record.mirror.layers))
    copy = RequestCopy(
        mirror=record.mirror,
        op=given.op,
        host_pages=placed.host_pages,
        device_pages=placed.device_pages,
        generations=(generations or record.generation)(placed.host_pages),
        h=len(host),
        d=len(device),
        token_granular=path.token_granular,
        io_backend=given.io_backend,
        layers=layers,
        model_layers=layers,
        op_id=op_id,
        spans=path.spans,
        requests=[request.span for request in given.whom if request.span is not None],
        names=tuple([request.name for request in given.whom]),
    )
    sound = path.are_pages and copy.fits
    use = _use(record, given, path) if readable and not sound else None
    tokens_per_index = record.mirror.tokens_per_page // record.mirror.slot_page
    return Reading(copy, use, len(device) * tokens_per_index)


def _indices(given: Given) -> tuple[Pages, Pages, bool]:
    """Return both ends' indices as int64, and whether they are the real ones.

    Indices on a GPU are not read, because that would wait for the stream. The numbers from 0 up
    replace them: a choice by length needs no more.
    """
    host, device = given.host_indices, given.device_indices
    if host.is_cpu and device.is_cpu:
        # Copies: the bus's thread looks at them after SGLang may have gone on.
        return _copied(host), _copied(device), True
    return np.arange(host.numel()), np.arange(device.numel()), False


def _copied(index: torch.Tensor) -> Pages:
    flat = index if index.dim() == 1 else index.reshape(-1)
    return np.array(flat.numpy(), np.int64)


def _path(record: PoolRecord, given: Given, host: Pages, device: Pages) -> Path:
    if len(host) != len(device):
        return replace(NOTHING, host=host, device=device)  # refused by the pool, or a fault
    if record.kind is None or record.geometry is None:
        pages = np.full(-(-len(host) // record.mirror.slot_page), -1, np.int64)
        return replace(NOTHING, host_pages=pages, device_pages=pages)
    rule = record.kind.rules[given.method]
    return rule(
        Call(
            pool=given.pool,
            geometry=record.geometry,
            host=host,
            device=device,
            io_backend=given.io_backend,
            is_backup=given.op is Op.BACKUP,
        )
    )


def _use(record: PoolRecord, given: Given, path: Path) -> IndexUse:
    mirror, geometry = record.mirror, record.geometry
    shard = geometry.shard[0] if geometry else 1
    page = mirror.slot_page // shard
    host, device = (
        max((view.pages for view in end.values()), default=0)
        for end in (mirror.host, mirror.device)
    )
    return IndexUse(
        pool=mirror.pool,
        op=given.op.value,
        unit=mirror.index_unit,
        host=path.host,
        device=path.device,
        slot_page=page,
        page_path=path.page_path,
        host_limit=host * page,
        device_limit=device * page,
        item_bytes=mirror.item_bytes,
        kernel=path.kernel,
    )


def _unplaced(path: Path) -> Path:
    """Return as many unknown pages, as -1, which lies in no tensor."""
    pages = np.full(len(path.host_pages), -1, np.int64)
    return replace(path, host_pages=pages, device_pages=pages)
