"""SGLang's own host pools and copy kernels, as released, for the same pages as ours.

They are called as SGLang's cache controller calls them: ``backup_from_device_all_layer`` once, and
``load_to_device_per_layer`` layer by layer, on a stream. Device memory is a pool object (0.5.17) or a
description of buffers (0.5.23).
"""

import gc
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.indices import Ids

__all__ = ["Peer", "peer_pool", "sglang_version"]

_CACHE = "sglang.srt.mem_cache."
_DEVICE = torch.device("cuda", 0)


def sglang_version() -> str | None:
    """Return the version of the SGLang that can be imported here; None without one or a GPU."""
    try:
        importlib.import_module(_CACHE + "memory_pool_host")
        return str(importlib.import_module("sglang").__version__)
    except ImportError:
        return None


@dataclass
class Peer:
    """One of SGLang's host pools, the device memory it mirrors, and the same pages' indices."""

    host: Any
    device: Any
    buffers: Sequence[torch.Tensor]
    layers: int
    backend: str
    page_tokens: int
    rows_per_page: int = 1
    anchor: Any = None
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def aim(self, host: Ids, device: Ids) -> None:
        """Choose the pages to move. SGLang reserves page 0 of a device, so ids there begin at 1."""
        at_host = _indices(host, self.page_tokens)
        at_device = _indices(device + 1, self.page_tokens)
        if self.backend == "kernel":
            staged = self.host.layout == "page_first" and self.host.can_use_write_back_jit
            self._load = at_host.cuda(), at_device.cuda()
            self._backup = (at_host if staged else self._load[0]), self._load[1]
        else:
            if self.host.layout == "layer_first":
                at_host, order = at_host.sort()
                at_device = at_device.index_select(0, order)
            self._backup = self._load = at_host, at_device
        torch.cuda.synchronize()

    def backup(self) -> None:
        """Copy all layers to the host; the bytes have arrived on return."""
        with torch.cuda.stream(self.stream):
            self.host.backup_from_device_all_layer(self.device, *self._backup, self.backend)
        torch.cuda.synchronize()

    def load(self) -> None:
        """Copy to the device layer by layer; the bytes have arrived on return."""
        with torch.cuda.stream(self.stream):
            for layer in range(self.layers):
                self.host.load_to_device_per_layer(self.device, *self._load, layer, self.backend)
        torch.cuda.synchronize()

    def bytes_return(self, device: Ids) -> bool:
        """Return whether pages backed up and loaded over zeros are restored."""
        pages = torch.from_numpy(device[:64] + 1).cuda()
        rows = [buffer.view(-1, buffer.shape[1] * self.rows_per_page) for buffer in self.buffers]
        before = [row[pages].clone() for row in rows]
        self.backup()
        for row in rows:
            row.zero_()
        torch.cuda.synchronize()
        self.load()
        return all(torch.equal(row[pages], old) for row, old in zip(rows, before, strict=True))

    def close(self) -> None:
        """Release the pinned memory."""
        for pool in (self.host, self.anchor):
            if pool is not None:
                if "destroy" not in vars(type(pool)) and hasattr(pool, "index_k_with_scale_buffer"):
                    # The destroy that 0.5.17 inherits leaves this buffer registered.
                    common = _module("pool_host.common")
                    common._cuda_host_unregister(pool.index_k_with_scale_buffer)  # noqa: SLF001
                pool.destroy()
        self.host = self.device = self.anchor = None
        gc.collect()


def peer_pool(geometry: PoolGeometry, pages: int, layout: str, backend: str) -> Peer:
    """Return SGLang's pools for ``geometry``, with as many pages.

    Raises:
        ValueError: SGLang has no such pool, or not in this layout.
    """
    make = _MAKERS.get(geometry.name)
    if make is None:
        raise ValueError(f"no host pool class is known for {geometry.name}")
    return make(geometry, pages, layout, backend)


def _module(name: str) -> Any:
    return importlib.import_module(_CACHE + name)


def _indices(pages: Ids, tokens: int) -> torch.Tensor:
    starts = torch.from_numpy(pages).view(-1, 1) * tokens
    return (starts + torch.arange(tokens).view(1, -1)).reshape(-1)


def _random(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=_DEVICE)


def _pointers(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    addresses = [tensor.data_ptr() for tensor in tensors]
    return torch.tensor(addresses, dtype=torch.uint64, device=_DEVICE)


def _bytes_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.view(torch.uint8).reshape(tensor.shape[0], -1) for tensor in tensors]


def _described() -> Any:
    """Return the module that describes device buffers; None if pools are passed as objects."""
    try:
        return _module("device_pool_info")
    except ImportError:
        return None


def _mla(geometry: PoolGeometry, pages: int, layout: str, backend: str) -> Peer:
    layers, tokens = geometry.layers, geometry.slots_per_page
    size, info, device = pages * tokens, _described(), None
    make = _module("pool_host.mla").MLATokenToKVPoolHost
    if info is None:
        pool = _module("memory_pool").MLATokenToKVPool
        device = pool(
            size, tokens, torch.bfloat16, 512, 64, layers, "cuda", enable_memory_saver=False
        )
        buffers = list(device.kv_buffer)
        host = make(device, 1.0, 0, tokens, layout)
    else:
        buffers = [_random(size + tokens, 1, 1152).view(torch.bfloat16) for _ in range(layers)]
        described = info.MLABufferInfo(
            buffers=tuple(buffers),
            data_ptrs=_pointers(buffers),
            layer_indices=tuple(range(layers)),
            device_layer_num=layers,
            page_size=tokens,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            kv_cache_dim=576,
            dtype=torch.bfloat16,
            device=_DEVICE,
        )
        sizes = {"start_layer": 0, "end_layer": layers, "target_layer_num": layers}
        host = make(described, 1.0, 0, tokens, layout, device_capacity_tokens=size, **sizes)
    return Peer(host, device, _bytes_of(buffers), layers, backend, tokens, tokens)


def _mha(geometry: PoolGeometry, pages: int, layout: str, backend: str) -> Peer:
    layers, tokens, heads = geometry.layers, geometry.slots_per_page, geometry.components[0].heads
    size, info, device = pages * tokens, _described(), None
    width = geometry.components[0].head_bytes // 2
    make = _module("pool_host.mha").MHATokenToKVPoolHost
    if info is None:
        pool = _module("memory_pool").MHATokenToKVPool
        device = pool(
            size, tokens, torch.bfloat16, heads, width, layers, "cuda", enable_memory_saver=False
        )
        keys, values = list(device.k_buffer), list(device.v_buffer)
        host = make(device, 1.0, 0, tokens, layout)
    else:
        keys, values = (
            [_random(size + tokens, heads, 2 * width).view(torch.bfloat16) for _ in range(layers)]
            for _ in range(2)
        )
        described = info.MHABufferInfo(
            buffers=info.KVBuffers(
                k=tuple(keys),
                v=tuple(values),
                k_data_ptrs=_pointers(keys),
                v_data_ptrs=_pointers(values),
                layout=info.KVBufferLayout.NHD,
            ),
            page_size=tokens,
            head_num=heads,
            head_dim=width,
            v_head_dim=width,
            dtype=torch.bfloat16,
            device=_DEVICE,
        )
        sizes = {"start_layer": 0, "end_layer": layers}
        host = make(described, 1.0, 0, tokens, layout, device_capacity_tokens=size, **sizes)
    return Peer(host, device, _bytes_of([*keys, *values]), layers, backend, tokens, tokens)


def _paged(geometry: PoolGeometry, pages: int, layout: str, backend: str) -> Peer:
    item = geometry.page_bytes()
    buffers = [_random(pages + 1, item) for _ in range(geometry.layers)]
    make = _module("memory_pool_host").DeepSeekV4PagedHostPool
    tokens = geometry.tokens_per_page
    host = make(
        geometry.name,
        buffers,
        item,
        num_host_pages=pages + 1,
        slot_page_size=tokens,
        layout=layout,
    )
    return Peer(host, None, buffers, geometry.layers, backend, tokens)


def _indexer(geometry: PoolGeometry, pages: int, layout: str, backend: str) -> Peer:
    """Build the keys of a sparse-attention indexer; its host pool needs that of a latent pool."""
    layers, tokens = geometry.layers, geometry.slots_per_page
    if geometry.page_bytes() != 8448:
        raise ValueError("index keys are kept in fp8 only, 8,448 B a page")
    if _described() is None:
        pool = _module("memory_pool").DSATokenToKVPool
        device = pool(
            size=pages * tokens,
            page_size=tokens,
            kv_lora_rank=512,
            dtype=torch.float8_e4m3fn,
            qk_rope_head_dim=64,
            layer_num=layers,
            device="cuda",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=656,
        )
        latent = _module("pool_host.mla").MLATokenToKVPoolHost(
            device, 1.0, 0, tokens, layout, override_kv_cache_dim=656
        )
        host = _module("memory_pool_host").DSAIndexerPoolHost(device, latent, layout)
    else:
        device, latent, host = _described_indexer(geometry, pages, layout)
    buffers = list(device.index_k_with_scale_buffer)
    return Peer(host, device, buffers, layers, backend, tokens, anchor=latent)


def _described_indexer(geometry: PoolGeometry, pages: int, layout: str) -> tuple[Any, Any, Any]:
    layers, tokens = geometry.layers, geometry.slots_per_page
    anchor = SimpleNamespace(layers=1, slots_per_page=tokens)
    latent = _mla(anchor, pages, layout, "kernel").host  # type: ignore[arg-type]
    device = SimpleNamespace(
        layer_num=layers,
        start_layer=0,
        end_layer=layers,
        device=_DEVICE,
        store_dtype=torch.uint8,
        layer_shard_enabled=False,
        index_head_dim=128,
        quant_block_size=128,
        page_size=tokens,
        index_page_size=tokens,
        index_k_with_scale_buffer=[_random(pages + 1, 8448) for _ in range(layers)],
    )
    declared, dsa = _module("pool_host.host_pool_decl"), _module("pool_host.dsa")
    names = _module("hicache_storage").PoolName
    declaration = declared.HostPoolDecl(
        pool_name=names.INDEXER,
        device_pool=device,
        indices_from_pool=names.KV,
        layout_source=names.KV,
        storage_info=declared.HostPoolStorageInfo(bytes_per_token_per_layer=132, dtype=torch.uint8),
        host_pool_builder=dsa.DSAIndexerHostPoolBuilder(),
        owned_device_layers=tuple(range(layers)),
    )
    return device, latent, dsa.DSAIndexerPoolHost(declaration, latent)


_MAKERS: dict[str, Callable[[PoolGeometry, int, str, str], Peer]] = {
    "mla": _mla,
    "mha": _mha,
    "dsa_index_k": _indexer,
    "deepseek_v4_c4": _paged,
    "deepseek_v4_c128": _paged,
    "deepseek_v4_c4_indexer": _paged,
}
