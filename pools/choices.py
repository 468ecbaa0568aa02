"""Options that can be chosen by name: layouts, index units, io backends, index-K storage types.

They live apart from the pools so that listing the choices does not import torch.
"""

from enum import StrEnum
from typing import Literal

__all__ = ["IndexDtype", "IndexUnit", "IoBackend", "Layout"]

IndexDtype = Literal["bf16", "fp8"]
"""Storage type of index-K on the device."""


class Layout(StrEnum):
    """Order in which a host pool arranges layers, pages, slots and heads."""

    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"
    PAGE_HEAD = "page_head"


class IndexUnit(StrEnum):
    """What one index of a copy counts."""

    TOKEN = "token"  # noqa: S105 (a unit, not a secret)
    SLOT = "slot"
    PAGE = "page"


class IoBackend(StrEnum):
    """How a copy moves bytes: gathered by a kernel, or as a batch of plain memory copies."""

    KERNEL = "kernel"
    DIRECT = "direct"
