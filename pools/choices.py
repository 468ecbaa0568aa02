"""What can be chosen by name: layouts, units of an index, ways to copy, storage types of index-K.

Apart from the pools that have them, so that a list of the choices costs no import of torch.
"""

from enum import StrEnum
from typing import Literal

__all__ = ["IndexDtype", "IndexUnit", "IoBackend", "Layout"]

IndexDtype = Literal["bf16", "fp8"]
"""What a device stores index-K in."""


class Layout(StrEnum):
    """In which order a host pool keeps layers, pages, slots and heads."""

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
    """How a copy moves bytes: gathered by a kernel, or as a batch of plain copies."""

    KERNEL = "kernel"
    DIRECT = "direct"
