"""Where a slot's bytes lie in SGLang's page rows, derived from the bytes of a page."""

from hicache_dbg.tracer.checks.index_space import TokenKernel
from hicache_dbg.tracer.view import Run

__all__ = ["C4_TOKENS", "deepseek_v4_page", "index_k_page"]

#: The page format that ``transfer_cache_dsv4_mla`` assumes (``kvcacheio.cuh``).
C4_TOKENS = TokenKernel(slots=64, value_bytes=576, scale_bytes=8, page_bytes=37440)

#: Bytes of a value (448 fp8 + 64 bf16) and of its scales (7 ue8m0 + 1), DeepSeek-V4; a page is
#: padded to whole values.
_VALUE, _SCALE = 576, 8
#: (key bytes, scale bytes) of an index-K slot: fp8 with one fp32 scale, fp4 with four ue8m0.
_INDEX_K = ((128, 4), (64, 4))

Layout = tuple[int, tuple[Run, ...] | None]


def deepseek_v4_page(item_bytes: int) -> Layout:
    """Return the slots of a DeepSeek-V4 page row and their runs: values, scales, then padding.

    A row of another format counts as one slot: its bytes are compared as a whole.
    """
    slots = item_bytes // (_VALUE + _SCALE)
    padded = -(-slots * (_VALUE + _SCALE) // _VALUE) * _VALUE
    if not slots or padded != item_bytes:
        return 1, None
    return slots, (Run(0, _VALUE, _VALUE), Run(slots * _VALUE, _SCALE, _SCALE))


def index_k_page(item_bytes: int, slots: int) -> tuple[Run, ...] | None:
    """Return the runs of an index-K page: all keys, then all scales; None if not quantized."""
    for key, scale in _INDEX_K:
        if item_bytes == slots * (key + scale):
            return Run(0, key, key), Run(slots * key, scale, scale)
    return None
