"""Host pools: the mirror of a device pool in host memory, in a chosen layout.

Each class stands for one kind of pool. A host pool has its own geometry object, so that the sizes
it was built from can be compared with what the device really holds.
"""

import os
import weakref
from dataclasses import dataclass, replace
from types import TracebackType
from typing import ClassVar, Self

import torch

from hicache_dbg.pools.buffer import Buffer, host_buffer
from hicache_dbg.pools.captures import guard_for
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import GeometryError, Layout, PoolGeometry
from hicache_dbg.pools.pinning import PinState, pin, unpin

__all__ = [
    "HostPool",
    "IndexKHostPool",
    "LatentHostPool",
    "MHAHostPool",
    "Mirror",
    "PagedHostPool",
    "host_geometry_like",
    "host_pool_for",
]

_UNPINNED = PinState(requested=False, pinned=False, return_code=0, bytes=0, chunks=0)


class HostPool:
    """Pages of one geometry in host memory.

    The memory is unpinned by :meth:`close`, on leaving the pool as a context manager, or with the pool
    itself. ``pinned`` records the outcome if page-locking was requested; a refusal raises no error here.
    ``buffers`` hold one tensor per component, its axes in the order of ``layout``.

    Raises:
        GeometryError: the class does not support the layout or is for another kind of pool, or
            ``pages`` is below 1.
    """

    layouts: ClassVar[frozenset[Layout]] = frozenset(
        {Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT}
    )
    page_indexed: ClassVar[bool] = True

    def __init__(
        self,
        geometry: PoolGeometry,
        pages: int,
        layout: Layout,
        pin: bool = False,
    ) -> None:
        cls = type(self)
        if layout not in cls.layouts:
            raise GeometryError(
                f"{cls.__name__} of {geometry.name} has no layout {layout}, "
                f"expected one of {', '.join(sorted(cls.layouts))}"
            )
        if geometry.page_indexed is not cls.page_indexed:
            raise GeometryError(
                f"{cls.__name__} is for pools with page_indexed={cls.page_indexed}, "
                f"{geometry.name} has page_indexed={geometry.page_indexed}"
            )
        self.geometry = geometry
        self.pages = pages
        self.layout = layout
        self.buffers: dict[str, Buffer] = {
            component.name: host_buffer(geometry, component, pages, layout)
            for component in geometry.components
        }
        self.pinned = self._pin() if pin else _UNPINNED

    @property
    def nbytes(self) -> int:
        """Bytes of host memory the pool holds."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def close(self) -> None:
        """Unregister pinned memory; may be called more than once."""
        if self.pinned.pinned:
            self._unpin()
            self.pinned = replace(self.pinned, pinned=False, bytes=0, chunks=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _pin(self) -> PinState:
        memory = [buffer.flat(0) for buffer in self.buffers.values()]
        state = pin(memory)
        if state.pinned:
            # Before it is unmapped: CUDA refuses the next pool at addresses that are still registered.
            self._unpin = weakref.finalize(self, _unpin, memory, os.getpid())
            self._unpin.atexit = False
        return state


def _unpin(memory: list[torch.Tensor], registered_by: int) -> None:
    if os.getpid() == registered_by:  # a forked child cannot call CUDA, and has nothing registered
        # The garbage collector may call it beside a graph capture, which it must not invalidate.
        with guard_for(torch.device("cuda"))():
            unpin(memory)


class LatentHostPool(HostPool):
    """Mirror of row-indexed latent pools (MLA)."""

    page_indexed: ClassVar[bool] = False


class MHAHostPool(HostPool):
    """Mirror of pools with a head axis; the only kind that supports ``page_head``."""

    layouts: ClassVar[frozenset[Layout]] = frozenset(Layout)
    page_indexed: ClassVar[bool] = False


class IndexKHostPool(HostPool):
    """Mirror of an indexer's keys: a sidecar of the latent pool."""


class PagedHostPool(HostPool):
    """Mirror of page-indexed pools such as DeepSeek-V4's."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mirror:
    """A device pool and its mirror in host memory."""

    device: DevicePool
    host: HostPool

    @property
    def name(self) -> str:
        """Name of the device pool."""
        return self.device.geometry.name


def host_geometry_like(device: DevicePool) -> PoolGeometry:
    """Return a separate geometry for the host, with dtypes read off the device pool's tensors."""
    components = tuple(
        replace(component, dtype=device.layer(component.name, 0).dtype)
        for component in device.geometry.components
    )
    return replace(device.geometry, components=components)


def host_pool_for(
    geometry: PoolGeometry, pages: int, layout: Layout, *, pin: bool = False
) -> HostPool:
    """Create a host pool of the class that serves this kind of pool; raises as that class."""
    return _host_class(geometry)(geometry, pages, layout, pin)


def _host_class(geometry: PoolGeometry) -> type[HostPool]:
    if geometry.page_indexed:
        dsa = geometry.name.removeprefix("draft_").startswith("dsa_index_k")
        return IndexKHostPool if dsa else PagedHostPool
    heads = all(component.head_axis for component in geometry.components)
    return MHAHostPool if heads else LatentHostPool
