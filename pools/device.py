"""Device pools: the memory a model reads and writes, one tensor a layer and component."""

import torch

from hicache_dbg.pools.buffer import Buffer, device_buffer
from hicache_dbg.pools.geometry import PoolGeometry

__all__ = ["DevicePool"]


class DevicePool:
    """Pages of one geometry on ``device`` (any string torch knows: ``cpu``, ``cuda:0``).

    Page-indexed components are ``[page, byte]`` a layer, row-indexed ones ``[page, slot, byte]``
    or, with a head axis, ``[page, slot, head, byte]``; ``byte`` counts elements of the dtype.

    Raises:
        GeometryError: ``pages`` is below 1.
    """

    def __init__(
        self, geometry: PoolGeometry, pages: int, device: str | torch.device = "cpu"
    ) -> None:
        self.geometry = geometry
        self.pages = pages
        self.device = torch.device(device)
        self.buffers: dict[str, Buffer] = {
            component.name: device_buffer(geometry, component, pages, self.device)
            for component in geometry.components
        }

    def layer(self, component: str, layer: int) -> torch.Tensor:
        """The tensor of ``component`` in the pool's own layer ``layer``, of the shape said above."""
        return self.buffers[component].tensors[layer]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory the pool holds."""
        return sum(buffer.nbytes for buffer in self.buffers.values())
