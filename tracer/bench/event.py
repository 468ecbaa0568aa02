"""The event that the benchmarks send: a load of sixteen pages with every tile verified."""

from hicache_dbg.tracer.events import Copied, Op, Tier

__all__ = ["EVENT"]

EVENT = Copied(
    time_ns=1_700_000_000_000_000_000,
    pool="dsa_index_k",
    op=Op.LOAD,
    token_granular=False,
    layout="page_first",
    h=1024,
    d=1024,
    slot_page=64,
    unit="token",
    pages=16,
    item_bytes=16384,
    dtype="bfloat16",
    layers=4,
    cls="IndexKHostPool",
    io_backend="kernel",
    src=Tier.HOST,
    dst=Tier.DEVICE,
    bytes=1 << 20,
    duration_us=100.0,
    verified=64,
    op_id=1,
)
