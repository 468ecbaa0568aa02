"""The right number of bytes in the wrong order."""

from collections.abc import Callable
from dataclasses import replace

from hicache_dbg.pools.buffer import Buffer
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.engine import EnginePlan
from hicache_dbg.repro.faults.base import Fault, Target, sidecar
from hicache_dbg.repro.faults.places import after_begin
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

Axes = tuple[str, ...]


def _read_as(buffer: Buffer, axes: Axes) -> Buffer:
    """The same memory, taken for a tensor whose axes come in another order."""
    size = dict(zip(buffer.dims, buffer.tensors[0].shape, strict=True))
    shape = tuple(size[axis] for axis in axes)
    return Buffer(buffer.component, (buffer.tensors[0].view(-1).view(shape),), axes)


def _misread(pool: HostPool, axes: Axes) -> HostPool:
    """A host pool over the same memory, read in the order ``axes``."""
    other = object.__new__(type(pool))
    vars(other).update(vars(pool))
    other.buffers = {name: _read_as(buffer, axes) for name, buffer in pool.buffers.items()}
    return other


def _loads_misread(which: Callable[[Target], int], axes: Axes) -> Callable[[Target], None]:
    """Loads of the group's pool ``number`` have an order of their own for what backups wrote."""

    def install(target: Target) -> None:
        number = which(target)
        mirror = target.controller.group.mirrors[number]
        have = {buffer.dims for buffer in mirror.host.buffers.values()}
        if axes in have or any(sorted(dims) != sorted(axes) for dims in have):
            raise ConfigError(
                f"this fault reads host memory as {axes}, and {mirror.name} has {sorted(have)}; use "
                "pools mla_index_k with layout page_first"
            )
        wrong = Mirror(mirror.device, _misread(mirror.host, axes))

        def change(op: CopyOp, _host: Ids, _device: Ids) -> None:
            copies = list(op.copies)
            copies[number] = replace(copies[number], mirror=wrong)
            op.copies = tuple(copies)

        after_begin(target, "load", change)

    return install


def _tag_lies(plan: EnginePlan) -> EnginePlan:
    anchor = plan.pools[0].name

    class Mistagged(plan.host_class[anchor]):  # type: ignore[misc,name-defined]
        """Says layer_first of memory that is not."""

        def __init__(
            self, geometry: PoolGeometry, pages: int, layout: Layout, pin: bool = False
        ) -> None:
            super().__init__(geometry, pages, layout, pin)
            self.layout = Layout.LAYER_FIRST

    return replace(plan, host_class={**plan.host_class, anchor: Mistagged})


FAULTS = (
    Fault(
        name="latent_slots_read_as_layers",
        cls=FaultClass.LAYOUT_ORDER,
        summary="backups write latent rows slot by slot, loads read them layer by layer",
        install=_loads_misread(lambda _: 0, ("page", "layer", "slot", "byte")),
        pools=("mla",),
    ),
    Fault(
        name="index_k_read_layer_first",
        cls=FaultClass.LAYOUT_ORDER,
        summary="backups write index-K page by page, loads read it as if layers came first",
        install=_loads_misread(sidecar, ("layer", "page", "byte")),
        pools=("dsa_index_k",),
    ),
    Fault(
        name="layout_tag_not_forwarded",
        cls=FaultClass.LAYOUT_ORDER,
        summary="the host pool says layer_first of memory that is page_first; no reader has believed it yet",
        apply=_tag_lies,
        pools=("mla",),
    ),
)
