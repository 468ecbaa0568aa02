# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Released SGLang's host pools over tensors on a GPU: what a builder makes, and shared helpers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import prelude  # noqa: F401 - before anything of SGLang
import torch
from sglang.srt.mem_cache import memory_pool_host
from sglang.version import __version__ as sglang_version

__all__ = [
    "DECLARED",
    "DESCRIBED",
    "DEVICE",
    "ENGINE",
    "NUMBER",
    "VERSION",
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
NUMBER = tuple(int(part) for part in VERSION.split(".")[:3])
#: Since 0.5.23 a host pool is built over a description of tensors, not over a device pool.
DESCRIBED = NUMBER >= (0, 5, 23)
DECLARED = NUMBER >= (0, 5, 22)
#: Since 0.5.18 a transfer engine runs the copies.
ENGINE = NUMBER >= (0, 5, 18)
DEVICE = torch.device("cuda", 0)

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Setup:
    """A host pool and the device tensors under it.

    ``page`` is the number of indices in a page, ``devices`` holds every device tensor, and ``rows`` is
    how many of a tensor's entries make up a page (1 if they are pages already). ``keep`` must outlive
    the pool.
    """

    pool: Any
    page: int
    devices: Sequence[torch.Tensor]
    rows: int
    pool_device: Any
    layers: int
    keep: Any = None

    def destroy(self) -> None:
        """Unregister the pinned memory, whose addresses another mapping may get."""
        pinned = {t.untyped_storage().data_ptr(): t for t in _pinned(vars(self.pool))}
        for pool in (self.pool, self.keep):
            if hasattr(pool, "destroy"):
                pool.destroy()
        runtime: Any = torch.cuda.cudart()
        for start, tensor in pinned.items():
            if tensor.is_pinned():  # 0.5.17 leaves those of some classes registered
                runtime.cudaHostUnregister(start)


Build = Callable[[str, int, int], Setup]


def _pinned(fields: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the pinned tensors in a pool's fields, and in lists there."""
    for value in fields.values():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.is_pinned():
                yield one


def bytes_of(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """View a device tensor as [pages, bytes per page]."""
    whole = tensor.shape[0] // rows * rows
    return tensor[:whole].contiguous().view(torch.uint8).reshape(whole // rows, -1)


def random_bytes(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Create a tensor of this shape whose bytes, not its numbers, are random."""
    *outer, last = shape
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*outer, last * size), dtype=torch.uint8, device=DEVICE).view(
        dtype
    )


def pointers(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Build the table of addresses that a kernel takes."""
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64, device=DEVICE)


def host_class(name: str, module: str) -> Any:
    """Return a host pool class: early versions keep all in one module, later ones each in its own."""
    if hasattr(memory_pool_host, name):
        return getattr(memory_pool_host, name)
    return getattr(import_module(f"sglang.srt.mem_cache.pool_host.{module}"), name)


def device_like(layers: int, **given: Any) -> SimpleNamespace:
    """Build what host pools read from a device pool."""
    common = {
        "device": "cuda",
        "layer_num": layers,
        "start_layer": 0,
        "end_layer": layers,
        "layer_shard_enabled": False,
        "store_dtype": torch.bfloat16,
        "register_layer_transfer_counter": lambda _: None,
    }
    return SimpleNamespace(**(common | given))


def anchor(layout: str, page: int, pages: int) -> SimpleNamespace:
    """Build what a pool that follows another one's indices reads from that pool."""
    return SimpleNamespace(
        page_size=page,
        size=pages * page,
        page_num=pages,
        layout=layout,
        device="cpu",
        mtp_draft_device_pools=(),
        pin_memory=True,
    )
