"""The geometry of a page: the one place where byte counts are computed, from dtype and shape.

A *page* is what moves together. A *slot* is one entry of a page; one slot may stand for several
tokens. Within one layer, a page has one block of bytes per *component* (keys, values, a latent
row). A component lays its page out run by run: all slots of the first run, all slots of the second,
then padding.
"""

from dataclasses import dataclass

import torch

from hicache_dbg.pools.choices import IndexUnit, IoBackend, Layout

__all__ = [
    "Component",
    "GeometryError",
    "IndexUnit",
    "IoBackend",
    "Layout",
    "PoolGeometry",
    "RunSpec",
]


class GeometryError(ValueError):
    """An impossible geometry; the message holds the values that disagree."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Bytes of one kind per slot, over all heads: ``("key", 128)``, ``("scale", 4)``."""

    name: str
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Component:
    """One tensor of a pool: its dtype, its runs, and how its pages are padded.

    ``head_axis`` says that the tensor has a separate axis for heads, even if there is only one
    head. ``page_align`` rounds the size of a page-indexed page up to a multiple of that many bytes.
    """

    name: str
    dtype: torch.dtype
    runs: tuple[RunSpec, ...]
    heads: int = 1
    page_align: int = 1
    head_axis: bool = False

    def __post_init__(self) -> None:
        if not self.runs or min(run.slot_bytes for run in self.runs) <= 0:
            raise GeometryError(f"component {self.name}: runs {self.runs} hold no bytes")
        if self.slot_bytes % (self.heads * self.dtype.itemsize):
            raise GeometryError(
                f"component {self.name}: {self.slot_bytes} B a slot do not split into {self.heads} "
                f"heads of {self.dtype} ({self.dtype.itemsize} B an element)"
            )

    @property
    def slot_bytes(self) -> int:
        """Payload bytes of a slot, over all runs and heads."""
        return sum(run.slot_bytes for run in self.runs)

    @property
    def head_bytes(self) -> int:
        """Payload bytes of one head of a slot."""
        return self.slot_bytes // self.heads

    def page_payload(self, slots: int) -> int:
        """Return the payload bytes of a page of ``slots`` slots, without padding."""
        return slots * self.slot_bytes

    def page_bytes(self, slots: int) -> int:
        """Return the bytes a page of ``slots`` slots occupies, padding included."""
        return -(-self.page_payload(slots) // self.page_align) * self.page_align

    def run_offset(self, run: int, slots: int) -> int:
        """Return where run number ``run`` starts in a page of ``slots`` slots, in bytes."""
        return slots * sum(spec.slot_bytes for spec in self.runs[:run])


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Shape of a pool at one end of a mirror.

    A ``page_indexed`` pool has pages in the first axis and the page's bytes in the second. Any
    other pool is row-indexed: a page is ``slots_per_page`` rows. ``single_slots`` says whether a
    slot may be copied alone; in a ring it may not, because its slots belong to no single token.
    ``layer_ids`` are the model's layer numbers of the pool's layers, in order (default: 0, 1, ...).
    """

    name: str
    layers: int
    slots_per_page: int
    tokens_per_slot: int
    index_unit: IndexUnit
    page_indexed: bool
    components: tuple[Component, ...]
    single_slots: bool = True
    layer_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in ("layers", "slots_per_page", "tokens_per_slot"):
            value = getattr(self, field)
            if value < 1:
                raise GeometryError(f"{self.name}: {field} is {value}, expected at least 1")
        if not self.layer_ids:
            object.__setattr__(self, "layer_ids", tuple(range(self.layers)))
        if len(set(self.layer_ids)) != self.layers:
            raise GeometryError(
                f"{self.name}: layer_ids {self.layer_ids} name {len(set(self.layer_ids))} layers, "
                f"the pool has {self.layers}"
            )
        names = [component.name for component in self.components]
        if not names or len(set(names)) != len(names):
            raise GeometryError(f"{self.name}: component names {names} are not distinct")

    @property
    def tokens_per_page(self) -> int:
        """Tokens one page stands for."""
        return self.slots_per_page * self.tokens_per_slot

    @property
    def indices_per_page(self) -> int:
        """Number of indices, counted in ``index_unit``, that make up one page."""
        return {
            IndexUnit.TOKEN: self.tokens_per_page,
            IndexUnit.SLOT: self.slots_per_page,
            IndexUnit.PAGE: 1,
        }[self.index_unit]

    def page_bytes(self) -> int:
        """Return the bytes one page of one layer occupies over all components, with padding."""
        return sum(component.page_bytes(self.slots_per_page) for component in self.components)

    @property
    def padding(self) -> int:
        """Padding bytes of a page of one layer."""
        payload = sum(component.page_payload(self.slots_per_page) for component in self.components)
        return self.page_bytes() - payload

    def component(self, name: str) -> Component:
        """Return the component called ``name``; ``KeyError`` lists the existing names."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(
            f"pool {self.name} has no component {name!r}, it has "
            f"{[component.name for component in self.components]}"
        )
