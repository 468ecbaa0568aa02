"""Compare pools found by one index: a draft's and its target's may look alike and differ."""

from collections.abc import Iterable

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["check_shared_space"]

CHECK = "registration"
DRAFT = "draft_"


def check_shared_space(
    mirrors: Iterable[MirrorViews], *, time_ns: int, rank: int = 0
) -> list[Finding]:
    """Report a draft's pool that declares its target's format but has another stride.

    Code that uses one stride for both is right only for small indices, by luck.
    """
    by_name = {mirror.pool: mirror for mirror in mirrors}
    return [
        finding
        for name, draft in by_name.items()
        if (target := by_name.get(name.removeprefix(DRAFT))) is not None and target is not draft
        for finding in _strides(target, draft, time_ns=time_ns, rank=rank)
    ]


def _strides(
    target: MirrorViews, draft: MirrorViews, *, time_ns: int, rank: int
) -> Iterable[Finding]:
    for name, ours in target.device.items():
        theirs = draft.device.get(name)
        if theirs is None or (theirs.dtype, theirs.slots_per_page) != (
            ours.dtype,
            ours.slots_per_page,
        ):
            continue
        if theirs.slot_bytes != ours.slot_bytes:
            yield Finding(
                time_ns=time_ns,
                rank=rank,
                cls=FaultClass.ROW_WIDTH,
                pool=draft.pool,
                component=name,
                expected=f"{ours.slot_bytes} B a slot",
                got=f"{theirs.slot_bytes} B a slot",
                message=(
                    f"{draft.pool}.{name}: one index space, two strides, same declared format: "
                    f"{target.pool} has {ours.slot_bytes} B a slot, {draft.pool} {theirs.slot_bytes} B, "
                    f"both {ours.dtype}"
                ),
                advice="take each pool's stride from its own tensor, or give the draft the target's format",
                check=CHECK,
            )
