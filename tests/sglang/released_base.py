# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""What the host pools of every kind are built from, for the SGLang on the path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache import memory_pool_host
from sglang.version import __version__ as sglang_version

__all__ = [
    "DECLARED",
    "DESCRIBED",
    "DEVICE_PAGES",
    "ENGINE",
    "HOST_PAGES",
    "LAYERS",
    "NUMBER",
    "VERSION",
    "Case",
    "Setup",
    "Tensors",
    "anchor",
    "bytes_of",
    "device_like",
    "host_class",
    "pointers",
    "random_bytes",
]

VERSION: str = sglang_version
NUMBER = tuple(int(part) for part in VERSION.split("."))
#: From here on a host pool is built over a description of tensors, not over a device pool.
DESCRIBED = NUMBER >= (0, 5, 23)
#: Mamba's and index-K's host pools are a version ahead in this.
DECLARED = NUMBER >= (0, 5, 22)
#: From here on an engine of its own runs the copies.
ENGINE = NUMBER >= (0, 5, 18)
LAYERS = 2
DEVICE_PAGES = 7
HOST_PAGES = 16

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Setup:
    """A host pool and the device tensors under it.

    ``page`` is how many indices make up a page, ``devices`` every device tensor, ``rows`` how many
    of its entries a page has (1 where they are pages already).
    """

    pool: Any
    page: int
    devices: Sequence[torch.Tensor]
    rows: int
    pool_device: Any = None


@dataclass(frozen=True)
class Case:
    """One pool class with one layout and io backend: how it is built, and what it is to be called."""

    name: str
    build: Callable[[str], Setup]
    layout: str
    io_backend: str
    components: int = 1
    since: int = 13
    until: int = 99

    def __str__(self) -> str:
        return f"{self.name}-{self.layout}-{self.io_backend}"


def bytes_of(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A device tensor as [pages, bytes of a page]."""
    whole = tensor.shape[0] // rows * rows
    return tensor[:whole].contiguous().view(torch.uint8).reshape(whole // rows, -1)


def host_class(name: str, module: str) -> Any:
    """A host pool class, of the one module that early versions have or of one of its own."""
    if hasattr(memory_pool_host, name):
        return getattr(memory_pool_host, name)
    return getattr(import_module(f"sglang.srt.mem_cache.pool_host.{module}"), name)


def random_bytes(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor of these dimensions whose bytes, not its numbers, are random."""
    generator = torch.Generator().manual_seed(sum(shape))
    *outer, last = shape
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(
        0, 256, (*outer, last * size), dtype=torch.uint8, generator=generator
    ).view(dtype)


def pointers(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The table of addresses that a kernel gets."""
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def device_like(**given: Any) -> SimpleNamespace:
    """What the host pools of all versions ask a device pool for."""
    common = {
        "device": "cpu",
        "layer_num": LAYERS,
        "start_layer": 0,
        "end_layer": LAYERS,
        "layer_shard_enabled": False,
        "store_dtype": torch.bfloat16,
        "register_layer_transfer_counter": lambda _: None,
    }
    return SimpleNamespace(**(common | given))


def anchor(layout: str = "layer_first", page: int = 64) -> SimpleNamespace:
    """What a pool that rides on another's indices asks that one for."""
    return SimpleNamespace(
        page_size=page,
        size=HOST_PAGES * page,
        page_num=HOST_PAGES,
        layout=layout,
        device="cpu",
        mtp_draft_device_pools=(),
    )
