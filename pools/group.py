"""The pools that share the page ids of one anchor: a page id is valid in all of them."""

from collections.abc import Collection, Sequence
from typing import Self

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import GeometryError, IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import HostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Ids, Indices
from hicache_dbg.pools.transfer import PoolCopy

__all__ = ["PoolGroup"]


class PoolGroup:
    """Mirrors that share page ids: the anchor, its sidecars, a draft model's pools.

    Args:
        mirrors: the pools that are copied; the first is the anchor.
        unmirrored: device pools under the same pages that are not copied, for example a state that
            is recomputed after each load.
        waived: names of the unmirrored pools that are left out on purpose; forgetting one of the
            others corrupts the cache.

    Raises:
        GeometryError: there is no pool, two pools share a name, pools disagree in tokens per page
            or in page counts, or a waived name matches no unmirrored pool.
    """

    def __init__(
        self,
        mirrors: Sequence[Mirror],
        *,
        unmirrored: Sequence[DevicePool] = (),
        waived: Collection[str] = (),
    ) -> None:
        self.mirrors = tuple(mirrors)
        self.unmirrored = tuple(unmirrored)
        self.waived = frozenset(waived)
        if not self.mirrors:
            raise GeometryError("a pool group without pools, expected an anchor at least")
        names = [mirror.name for mirror in self.mirrors]
        if len(set(names)) != len(names):
            raise GeometryError(f"pool names {names} are not distinct")
        anchor = self.mirrors[0]
        self.page_tokens = anchor.device.geometry.tokens_per_page
        self.device_pages = anchor.device.pages
        self.host_pages = anchor.host.pages
        for mirror in self.mirrors[1:]:
            self._agrees(mirror)
        strangers = self.waived - {pool.geometry.name for pool in self.unmirrored}
        if strangers:
            raise GeometryError(
                f"waived are {', '.join(sorted(strangers))}, which are no pools without a mirror here; "
                f"those are {', '.join(pool.geometry.name for pool in self.unmirrored) or 'none'}"
            )

    @classmethod
    def build(
        cls,
        geometries: Sequence[PoolGeometry],
        *,
        device_pages: int,
        host_pages: int,
        layout: Layout,
        device: str = "cpu",
        pin: bool = False,
    ) -> Self:
        """Allocate device pools for ``geometries`` and host mirrors sized from the device tensors.

        Raises:
            GeometryError: as for the class, or a host pool does not support ``layout``.
        """
        mirrors = []
        for geometry in geometries:
            pool = DevicePool(geometry, device_pages, device)
            host = host_pool_for(host_geometry_like(pool), host_pages, layout, pin=pin)
            mirrors.append(Mirror(pool, host))
        return cls(mirrors)

    @property
    def device(self) -> dict[str, DevicePool]:
        """The device pools by name."""
        return {mirror.name: mirror.device for mirror in self.mirrors}

    @property
    def host(self) -> dict[str, HostPool]:
        """The host pools by the name of their device pool."""
        return {mirror.name: mirror.host for mirror in self.mirrors}

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model's layer numbers held by any pool, ascending."""
        return tuple(sorted({i for m in self.mirrors for i in m.device.geometry.layer_ids}))

    def copies(self, host: Ids, device: Ids, backend: IoBackend) -> tuple[PoolCopy, ...]:
        """Return the copies that move whole pages: every layer of every pool and sidecar."""
        return tuple(
            PoolCopy(
                mirror=mirror,
                host=Indices.pages(host, mirror.host.geometry),
                device=Indices.pages(device, mirror.device.geometry),
                token_granular=False,
                io_backend=backend,
                layers=tuple(range(mirror.device.geometry.layers)),
            )
            for mirror in self.mirrors
        )

    def close(self) -> None:
        """Unpin the host memory of all pools."""
        for mirror in self.mirrors:
            mirror.host.close()

    def _agrees(self, mirror: Mirror) -> None:
        for what, here, there in (
            ("tokens a page", mirror.device.geometry.tokens_per_page, self.page_tokens),
            ("device pages", mirror.device.pages, self.device_pages),
            ("host pages", mirror.host.pages, self.host_pages),
        ):
            if here != there:
                raise GeometryError(
                    f"{mirror.name} has {here} {what}, its anchor {self.mirrors[0].name} has "
                    f"{there}; pools under one anchor share page ids"
                )
