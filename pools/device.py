"""Device pools: the memory a model reads and writes, one tensor per layer and component."""

import torch

from hicache_dbg.pools.buffer import Buffer, device_buffer
from hicache_dbg.pools.geometry import PoolGeometry

__all__ = ["DevicePool"]


class DevicePool:
    """Pages of one geometry on ``device`` (any torch device string: ``cpu``, ``cuda:0``).

    The tensor of a layer is ``[page, byte]`` for page-indexed components and ``[page, slot, byte]``
    for row-indexed ones, or ``[page, slot, head, byte]`` with a head axis; ``byte`` counts elements
    of the dtype.

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
        """Return the tensor of ``component`` in the pool's own layer ``layer``.

        See the class for shapes.
        """
        return self.buffers[component].tensors[layer]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory the pool holds."""
        return sum(buffer.nbytes for buffer in self.buffers.values())
