"""Events as a run makes them; every field has its own range of values, so that mix-ups show."""

from typing import Any

import msgspec

from hicache_dbg.tracer.events import (
    ComponentInfo,
    Copied,
    EndInfo,
    FaultClass,
    Finding,
    Health,
    MirrorInfo,
    Op,
    Started,
    Tier,
)

__all__ = ["copied", "finding", "health", "started"]

TIME_NS = 1_700_000_000_000_000_000

_COPIED = Copied(
    time_ns=TIME_NS,
    rank=0,
    pool="deepseek_v4_c128",
    op=Op.BACKUP,
    token_granular=False,
    layout="page_first",
    h=512,
    d=512,
    slot_page=256,
    unit="token",
    pages=2,
    item_bytes=16384,
    dtype="bfloat16",
    layers=4,
    cls="C128HostPool",
    io_backend="kernel",
    src=Tier.DEVICE,
    dst=Tier.HOST,
    bytes=131072,
    duration_us=250.5,
    witnessed=7,
    skipped={"partial": 1},
    op_id=901,
)

_FINDING = Finding(
    time_ns=TIME_NS + 1000,
    cls=FaultClass.ROW_WIDTH,
    pool="index_k",
    op="backup",
    component="key",
    pages=(0, 1, 2, 7),
    page_count=40,
    expected="256",
    got="132",
    message="the host has 132 bytes a token where the device has 256",
    advice="size the mirror from the device tensor",
    check="registration",
    op_id=901,
)

_HEALTH = Health(
    time_ns=TIME_NS + 60_000_000_000,
    events=1000,
    copies=900,
    verified=500,
    witnessed=390,
    mismatched=3,
    skipped={"partial": 5, "off": 2},
    findings=4,
    queue_depth=17,
    dropped={"journald/blocked": 6, "bus/queue_full": 1},
    errors={"sink/otel": 2, "probe": 1},
    overhead_s=0.125,
)


def _end(tier: Tier, cls: str, layout: str, slot_bytes: int, *, pinned: bool | None) -> EndInfo:
    key = ComponentInfo(
        name="key",
        dtype="uint8" if tier is Tier.HOST else "bfloat16",
        slot_bytes=slot_bytes,
        page_bytes=slot_bytes * 64,
        pages=128,
        layers=4,
    )
    return EndInfo(
        tier=tier,
        cls=cls,
        layout=layout,
        device="cpu" if tier is Tier.HOST else "cuda:0",
        slots_per_page=64,
        components=(key,),
        pinned=pinned,
    )


_STARTED = Started(
    time_ns=TIME_NS - 1000,
    system="hicache_dbg.pools",
    version="0.1.0",
    checksum="loads",
    mirrors=(
        MirrorInfo(
            pool="index_k",
            index_unit="token",
            slot_page=64,
            tokens_per_page=64,
            device=_end(Tier.DEVICE, "IndexKDevicePool", "layer_first", 256, pinned=None),
            host=_end(Tier.HOST, "IndexKHostPool", "page_first", 132, pinned=True),
        ),
    ),
    classes_built=("IndexKHostPool",),
    classes_unbuilt=("LegacyIndexKHostPool",),
)


def copied(**changes: Any) -> Copied:
    """Return a backup of two pages of one pool."""
    return msgspec.structs.replace(_COPIED, **changes)


def finding(**changes: Any) -> Finding:
    """Return a finding about a mirror sized for fp8 under a bf16 device pool."""
    return msgspec.structs.replace(_FINDING, **changes)


def started(**changes: Any) -> Started:
    """Return the start of one rank that is attached to one mirror."""
    return msgspec.structs.replace(_STARTED, **changes)


def health(**changes: Any) -> Health:
    """Return a heartbeat of a run with a few losses."""
    return msgspec.structs.replace(_HEALTH, **changes)
