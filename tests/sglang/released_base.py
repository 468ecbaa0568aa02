# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Building blocks of the host pools of every kind, for the SGLang on the path."""

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

    ``page`` is the number of indices per page, ``devices`` are all device tensors, and ``rows`` is
    the number of their entries per page (1 if they are pages already).
    """

    pool: Any
    page: int
    devices: Sequence[torch.Tensor]
    rows: int
    pool_device: Any = None


@dataclass(frozen=True)
class Case:
    """One pool class with one layout and io backend: how to build it, and its expected name."""

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
    """Return a device tensor as [pages, bytes of a page]."""
    whole = tensor.shape[0] // rows * rows
    return tensor[:whole].contiguous().view(torch.uint8).reshape(whole // rows, -1)


def host_class(name: str, module: str) -> Any:
    """Return a host pool class, from the single module of early versions or from its own."""
    if hasattr(memory_pool_host, name):
        return getattr(memory_pool_host, name)
    return getattr(import_module(f"sglang.srt.mem_cache.pool_host.{module}"), name)


def random_bytes(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor of these dimensions with random bytes, not random numbers."""
    generator = torch.Generator().manual_seed(sum(shape))
    *outer, last = shape
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(
        0, 256, (*outer, last * size), dtype=torch.uint8, generator=generator
    ).view(dtype)


def pointers(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the table of addresses that a kernel gets."""
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def device_like(**given: Any) -> SimpleNamespace:
    """Return a stub with what the host pools of all versions read off a device pool."""
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
    """Return a stub with what a pool reads off the pool whose indices it shares."""
    return SimpleNamespace(
        page_size=page,
        size=HOST_PAGES * page,
        page_num=HOST_PAGES,
        layout=layout,
        device="cpu",
        mtp_draft_device_pools=(),
    )
