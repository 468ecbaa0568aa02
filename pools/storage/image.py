"""Where the bytes of a page are in the host pools; they are stored exactly so, in that order."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.geometry import GeometryError
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.storage.header import ComponentFormat

__all__ = ["HostImage"]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """The pieces of one component's pages: ``size`` bytes at each of ``starts + page * size``."""

    memory: memoryview
    address: int
    starts: tuple[int, ...]
    size: int


class HostImage:
    """Pages of all pools of a group as lists of pieces of host memory, without copying.

    Layouts that keep a page contiguous have one piece per component; ``layer_first`` has one per
    layer. All pools are mirrored under one page id, so a page is stored and fetched whole.
    """

    def __init__(self, group: PoolGroup) -> None:
        self._places: list[_Place] = []
        formats = []
        for mirror in group.mirrors:
            host = mirror.host
            for name, buffer in host.buffers.items():
                place = _place(buffer)
                self._places.append(place)
                formats.append(
                    ComponentFormat(
                        pool=mirror.name,
                        component=name,
                        dtype=str(buffer.tensors[0].dtype).removeprefix("torch."),
                        layout=host.layout.value,
                        layers=buffer.layers,
                        slots=host.geometry.slots_per_page,
                        row_bytes=buffer.component.slot_bytes,
                        page_bytes=place.size * len(place.starts),
                    )
                )
        self.components = tuple(formats)
        self.page_bytes = sum(item.page_bytes for item in formats)
        self.page_tokens = group.page_tokens

    def pieces(self, page: int) -> list[memoryview]:
        """Return views of the page's bytes, in payload order."""
        return [
            place.memory[at : at + place.size]
            for place in self._places
            for at in (start + page * place.size for start in place.starts)
        ]

    def addresses(self, page: int) -> tuple[list[int], list[int]]:
        """Return the addresses and lengths of the same pieces."""
        found = [
            (place.address + start + page * place.size, place.size)
            for place in self._places
            for start in place.starts
        ]
        return [address for address, _ in found], [size for _, size in found]

    def regions(self) -> Iterator[tuple[int, int]]:
        """Yield the address and length of each pool's memory, for registration with a transport."""
        for place in self._places:
            yield place.address, len(place.memory)


def _place(buffer: Buffer) -> _Place:
    memory = buffer.flat(0).numpy()  # the view keeps the mapping alive
    tensor, at = buffer.tensors[0], buffer.dims.index("page")
    itemsize = tensor.element_size()
    size = prod(tensor.shape[at + 1 :]) * itemsize
    if not tensor.is_contiguous() or at > 1:
        raise GeometryError(
            f"{buffer.component.name}: host memory of axes {buffer.dims} does not hold a page in one "
            "piece, or in one piece a layer, so it cannot be stored as it lies"
        )
    layers, step = (tensor.shape[0], tensor.stride(0) * itemsize) if at else (1, 0)
    starts = tuple(layer * step for layer in range(layers))
    return _Place(memory.data, memory.ctypes.data, starts, size)
