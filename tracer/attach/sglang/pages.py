"""Where a slot's bytes are in SGLang's page rows, by the bytes of a page."""

from hicache_dbg.tracer.checks.index_space import TokenKernel
from hicache_dbg.tracer.view import Run

__all__ = ["C4_TOKENS", "deepseek_v4_page", "index_k_page"]

#: ``kvcacheio.cuh``: what ``transfer_cache_dsv4_mla`` takes every page for.
C4_TOKENS = TokenKernel(slots=64, value_bytes=576, scale_bytes=8, page_bytes=37440)

#: Bytes of a value (448 fp8 + 64 bf16) and of its scales (7 ue8m0 + 1), DeepSeek-V4; a page is
#: padded to whole values.
_VALUE, _SCALE = 576, 8
#: (key bytes, scale bytes) of an index-K slot: fp8 with one fp32 scale, fp4 with four ue8m0.
_INDEX_K = ((128, 4), (64, 4))

Layout = tuple[int, tuple[Run, ...] | None]


def deepseek_v4_page(item_bytes: int) -> Layout:
    """Slots of a DeepSeek-V4 page row and their runs: all values, then all scales, then padding.

    A row of another format is taken as one slot: its bytes are compared as a whole.
    """
    slots = item_bytes // (_VALUE + _SCALE)
    padded = -(-slots * (_VALUE + _SCALE) // _VALUE) * _VALUE
    if not slots or padded != item_bytes:
        return 1, None
    return slots, (Run(0, _VALUE, _VALUE), Run(slots * _VALUE, _SCALE, _SCALE))


def index_k_page(item_bytes: int, slots: int) -> tuple[Run, ...] | None:
    """Runs of an index-K page of ``slots`` slots: all keys, then all scales; None if unquantised."""
    for key, scale in _INDEX_K:
        if item_bytes == slots * (key + scale):
            return Run(0, key, key), Run(slots * key, scale, scale)
    return None
