"""Tensors with named axes: strides are read off the tensor, never declared separately.

``dims`` names the axes, out of ``layer``, ``page``, ``slot``, ``head`` and ``byte``. The last axis
is always ``byte``, counted in elements of the tensor's dtype. Where there are several tensors, each
holds one layer.
"""

from dataclasses import dataclass

import torch

from hicache_dbg.pools.geometry import Component, GeometryError, Layout, PoolGeometry
from hicache_dbg.pools.host_memory import host_zeros

__all__ = ["Buffer", "device_buffer", "host_buffer"]

#: Order of the axes in host memory by layout; ``slot`` and ``head`` are omitted for components
#: that lack them.
HOST_AXES: dict[Layout, tuple[str, ...]] = {
    Layout.LAYER_FIRST: ("layer", "page", "slot", "head", "byte"),
    Layout.PAGE_FIRST: ("page", "slot", "layer", "head", "byte"),
    Layout.PAGE_FIRST_DIRECT: ("page", "layer", "slot", "head", "byte"),
    Layout.PAGE_HEAD: ("page", "head", "slot", "layer", "byte"),
}
DEVICE_AXES = ("page", "slot", "head", "byte")


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """The memory of one component at one end of a mirror.

    ``tensors`` share the component's dtype and one shape: either one tensor per layer, or a single
    tensor that has ``layer`` among its ``dims``.
    """

    component: Component
    tensors: tuple[torch.Tensor, ...]
    dims: tuple[str, ...]

    @property
    def pages(self) -> int:
        """Number of pages the tensors hold."""
        return self.tensors[0].shape[self.dims.index("page")]

    @property
    def layers(self) -> int:
        """Number of layers the tensors hold."""
        if "layer" in self.dims:
            return self.tensors[0].shape[self.dims.index("layer")]
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def stride_bytes(self, dim: str) -> int:
        """Return the stride of ``dim`` in bytes; 0 if the tensors have no such axis."""
        if dim not in self.dims:
            return 0
        return self.tensors[0].stride(self.dims.index(dim)) * self.tensors[0].element_size()

    def layer_place(self, layer: int) -> tuple[int, int]:
        """Return ``(tensor, offset)``: which tensor holds ``layer``, and where in bytes.

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= layer < self.layers:
            raise IndexError(
                f"{self.component.name}: layer {layer} lies outside the {self.layers} layers there"
            )
        return (0, layer * self.stride_bytes("layer")) if "layer" in self.dims else (layer, 0)

    def flat(self, tensor: int) -> torch.Tensor:
        """Return the memory of one tensor as a 1-D ``uint8`` view, from first to last byte."""
        source = self.tensors[tensor].view(torch.uint8)
        extent = 1 + sum(
            (size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)
        )
        return source.as_strided((extent,), (1,))


def device_buffer(
    geometry: PoolGeometry, component: Component, pages: int, device: torch.device
) -> Buffer:
    """Allocate zeroed memory on ``device``: one tensor ``[page, (slot, (head,)) byte]`` per layer.

    Raises:
        GeometryError: ``pages`` is below 1.
    """
    dims, shape = _shape(geometry, component, pages, DEVICE_AXES)
    tensors = tuple(
        torch.zeros(shape, dtype=component.dtype, device=device) for _ in range(geometry.layers)
    )
    return Buffer(component, tensors, dims)


def host_buffer(geometry: PoolGeometry, component: Component, pages: int, layout: Layout) -> Buffer:
    """Allocate zeroed host memory: one tensor for all layers, its axes in the order of ``layout``.

    The operating system maps the memory on first touch.

    Raises:
        GeometryError: ``pages`` is below 1, or the layout splits heads but the component has no
            head axis.
    """
    if layout is Layout.PAGE_HEAD and not component.head_axis:
        raise GeometryError(
            f"{geometry.name}: layout {layout} splits heads, but component {component.name} "
            "has no head axis; use layer_first, page_first or page_first_direct"
        )
    dims, shape = _shape(geometry, component, pages, HOST_AXES[layout])
    return Buffer(component, (host_zeros(shape, component.dtype),), dims)


def _shape(
    geometry: PoolGeometry, component: Component, pages: int, axes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if pages < 1:
        raise GeometryError(f"{geometry.name}: {pages} pages, expected at least 1")
    if geometry.page_indexed:
        item = component.page_bytes(geometry.slots_per_page)
        sizes = {"layer": geometry.layers, "page": pages}
    else:
        item = component.head_bytes if component.head_axis else component.slot_bytes
        sizes = {"layer": geometry.layers, "page": pages, "slot": geometry.slots_per_page}
        if component.head_axis:
            sizes["head"] = component.heads
    sizes["byte"] = item // component.dtype.itemsize
    dims = tuple(axis for axis in axes if axis in sizes)
    return dims, tuple(sizes[axis] for axis in dims)
