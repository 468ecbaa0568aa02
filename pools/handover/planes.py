"""Addresses of the tiles in a group's device pools, one plane per pool, component and layer."""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids

__all__ = [
    "Descriptors",
    "Place",
    "Plane",
    "Starts",
    "descriptors_of",
    "merged",
    "places_of",
    "planes_of",
    "regions_of",
    "starts_of",
]

Descriptors = npt.NDArray[np.uint64]
"""Rows of (address, bytes, device) that one transfer reads or writes, uint64 [rows, 3]."""

Starts = npt.NDArray[np.uint64]
"""The addresses at which tensors begin, uint64 [tensors]."""


class Plane(msgspec.Struct, frozen=True, array_like=True):
    """The pages of one component in one layer, numbered as in the model."""

    pool: str
    component: str
    layer: int
    base: int
    stride: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """The tile behind a row of descriptors; ``page`` is the logical page."""

    pool: str
    component: str
    layer: int
    page: int


def planes_of(group: PoolGroup) -> tuple[Plane, ...]:
    """Return every plane of the group's device pools, anchor first, in layer order."""
    found = []
    for mirror in group.mirrors:
        geometry = mirror.device.geometry
        for name, buffer in mirror.device.buffers.items():
            page_bytes = buffer.component.page_bytes(geometry.slots_per_page)
            for own, layer in enumerate(geometry.layer_ids):
                tensor, offset = buffer.layer_place(own)
                base = buffer.tensors[tensor].data_ptr() + offset
                stride = buffer.stride_bytes("page")
                found.append(Plane(mirror.name, name, layer, base, stride, page_bytes))
    return tuple(found)


def regions_of(group: PoolGroup) -> list[tuple[int, int, int]]:
    """Return (address, bytes, device) of every tensor of the device pools."""
    return [
        (tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(0, tensor.get_device()))
        for mirror in group.mirrors
        for buffer in mirror.device.buffers.values()
        for tensor in buffer.tensors
    ]


def descriptors_of(planes: tuple[Plane, ...], pages: Ids, device: int) -> Descriptors:
    """Return one row per tile: all pages of the first plane, then of the second, and so on."""
    places = [(plane.base, plane.stride, plane.page_bytes) for plane in planes]
    base, stride, size = np.array(places, np.uint64).reshape(-1, 3, 1).transpose(1, 0, 2)
    rows = np.empty((len(planes), len(pages), 3), np.uint64)
    rows[:, :, 0] = base + stride * pages.astype(np.uint64)
    rows[:, :, 1] = size
    rows[:, :, 2] = device
    return rows.reshape(-1, 3)


def starts_of(planes: tuple[Plane, ...]) -> Starts:
    """Return where the planes' tensors begin: layers within the first page of a tensor share it."""
    found: list[int] = []
    ends = 0  # of the first page of the tensor that was found last
    for base, stride in sorted((plane.base, plane.stride) for plane in planes):
        if base >= ends:
            found.append(base)
            ends = base + stride
    return np.array(found, np.uint64)


def merged(
    local: Descriptors, remote: Descriptors, *, starts: tuple[Starts, Starts]
) -> tuple[Descriptors, Descriptors]:
    """Merge rows that are adjacent at both ends, and in one tensor at each.

    A transport spends as long on a row as on many kilobytes, and pages are often adjacent. So may tensors be,
    and a transport refuses a row over two of them: ``starts`` are where they begin, local and remote.
    """
    together = np.ones(max(0, len(local) - 1), np.bool_)
    for rows, begun in zip((local, remote), starts, strict=True):
        together &= rows[:-1, 0] + rows[:-1, 1] == rows[1:, 0]
        together &= ~np.isin(rows[1:, 0], begun)
        together &= rows[:-1, 2] == rows[1:, 2]
    first = np.flatnonzero(np.concatenate([[True], ~together]))[: len(local)]
    if not first.size:
        return local, remote
    found = []
    for rows in (local, remote):
        kept = rows[first]
        kept[:, 1] = np.add.reduceat(rows[:, 1], first)
        found.append(kept)
    return found[0], found[1]


def places_of(planes: tuple[Plane, ...], pages: int) -> list[Place]:
    """Return the tile behind each row of :func:`descriptors_of`."""
    return [
        Place(plane.pool, plane.component, plane.layer, page)
        for plane in planes
        for page in range(pages)
    ]
