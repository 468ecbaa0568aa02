"""Views of our own engine's pools, read off their tensors' addresses, strides and item sizes."""

from collections.abc import Callable

import torch

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.pinning import CHUNK_BYTES
from hicache_dbg.tracer.checks.pinning import Pinning
from hicache_dbg.tracer.events import Tier
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import Run, View

__all__ = ["mirror_views", "pinning_of", "view_of"]


def view_of(buffer: Buffer, geometry: PoolGeometry, tier: Tier, layout: str) -> View:
    """Return where the tiles of one component lie in ``buffer``."""
    tensor = buffer.tensors[0]
    itemsize = tensor.element_size()
    stride = {dim: tensor.stride(axis) * itemsize for axis, dim in enumerate(buffer.dims)}
    size = {dim: tensor.shape[axis] for axis, dim in enumerate(buffer.dims)}
    row_bytes = size["byte"] * itemsize
    runs: tuple[Run, ...]
    if "slot" in size:
        heads = size.get("head", 1)
        runs = (Run(0, stride["slot"], row_bytes, heads, stride.get("head", 0)),)
        slots, span = size["slot"], size["slot"] * heads * row_bytes
    else:
        runs = _packed_runs(buffer, geometry.slots_per_page)
        slots, span = geometry.slots_per_page, row_bytes
    return View(
        pool=geometry.name,
        component=buffer.component.name,
        tier=tier.value,
        layout=layout,
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=itemsize,
        bases=_bases(buffer, stride.get("layer", 0)),
        page_stride=stride["page"],
        page_span=span,
        pages=size["page"],
        slots_per_page=slots,
        runs=runs,
        device=str(tensor.device),
        owner=buffer.tensors,
    )


def _packed_runs(buffer: Buffer, slots: int) -> tuple[Run, ...]:
    runs, offset = [], 0
    for spec in buffer.component.runs:
        runs.append(Run(offset, spec.slot_bytes, spec.slot_bytes))
        offset += slots * spec.slot_bytes
    return tuple(runs)


def _bases(buffer: Buffer, layer_stride: int) -> tuple[int, ...]:
    if "layer" not in buffer.dims:
        return tuple(tensor.data_ptr() for tensor in buffer.tensors)
    base = buffer.tensors[0].data_ptr()
    layers = buffer.tensors[0].shape[buffer.dims.index("layer")]
    return tuple(base + layer * layer_stride for layer in range(layers))


def pinning_of(host: HostPool) -> Pinning:
    """Return the outcome of page-locking ``host``, and what the driver says of each chunk."""
    state = host.pinned
    return Pinning(
        requested=state.requested,
        pinned=state.pinned,
        return_code=state.return_code,
        bytes=host.nbytes,
        pinned_bytes=state.bytes,
        declared=host.geometry.page_bytes() * host.geometry.layers * host.pages,
        largest_chunk=min(CHUNK_BYTES, max(buffer.nbytes for buffer in host.buffers.values())),
        open=_open_chunks(host) if state.pinned and torch.cuda.is_available() else (),
    )


def _open_chunks(host: HostPool) -> tuple[tuple[int, int], ...]:
    """Return (offset, bytes) of chunks whose first byte the driver does not know as pinned."""
    found: list[tuple[int, int]] = []
    before = 0
    for buffer in host.buffers.values():
        memory = buffer.flat(0)
        size = memory.numel()
        found += (
            (before + start, min(CHUNK_BYTES, size - start))
            for start in range(0, size, CHUNK_BYTES)
            if not memory[start : start + 1].is_pinned()
        )
        before += size
    return tuple(found)


def mirror_views(mirror: Mirror, generation: Callable[[Pages], Pages] | None) -> MirrorViews:
    """Return the views of both ends of ``mirror``, each read off its own tensors."""
    geometry, host = mirror.device.geometry, mirror.host
    return MirrorViews(
        pool=mirror.name,
        device={
            name: view_of(buffer, geometry, Tier.DEVICE, "layer_first")
            for name, buffer in mirror.device.buffers.items()
        },
        host={
            name: view_of(buffer, host.geometry, Tier.HOST, host.layout.value)
            for name, buffer in host.buffers.items()
        },
        device_cls=type(mirror.device).__name__,
        host_cls=type(host).__name__,
        index_unit=geometry.index_unit.value,
        slot_page=geometry.indices_per_page,
        tokens_per_page=geometry.tokens_per_page,
        page_indexed=geometry.page_indexed,
        pinned=host.pinned.pinned,
        generation=generation,
        pinning=pinning_of(host),
    )
