"""The host formula of both acts: index-K sized as fp8, whatever the device stores."""

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import PoolGeometry
from hicache_dbg.pools.kinds import index_k

__all__ = ["sized_as_fp8"]

_HEAD_DIM = 128


def sized_as_fp8(device: DevicePool) -> PoolGeometry:
    """A geometry of 128 + 128 / 128 * 4 = 132 B a token: right for fp8 keys, and hard-coded.

    Where the device stores bf16 (256 B a token) a host page has 8,448 B for a device page of
    16,384 B: a copy moves tokens 0..32 of each page and leaves 33..63 alone.
    """
    geometry = device.geometry
    return index_k(geometry.layers, geometry.slots_per_page, "fp8", _HEAD_DIM)
