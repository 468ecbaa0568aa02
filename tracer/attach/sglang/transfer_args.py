"""What SGLang's ``KVArgs`` say about the memory that prefill hands to decode."""

from collections.abc import Mapping, Sequence
from typing import Any

from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import Run, View

__all__ = ["MHA", "MLA", "agreed_fields", "mirror_of", "own_fields", "peer_fields"]

POOL = "kv"
#: How a pool is distributed over ranks: replicated on each, or split by heads.
MLA, MHA = "whole", "heads"


def mirror_of(args: Any, device: str) -> MirrorViews:
    """Return the registered buffers as views, one per page size.

    Page p of buffer i begins at ``ptr[i] + p * size``. Both ends are the same, because the peer's
    addresses are not known here.
    """
    sizes: dict[int, list[int]] = {}
    for at, size in enumerate(args.kv_item_lens):
        sizes.setdefault(int(size), []).append(at)
    views = {}
    for number, (size, buffers) in enumerate(sizes.items()):
        name = "page" if len(sizes) == 1 else f"page{number}"
        views[name] = View(
            pool=POOL,
            component=name,
            tier="device",
            layout="layer_first",
            dtype=str(getattr(args, "kv_cache_dtype_str", None) or "uint8"),
            itemsize=1,
            bases=tuple(int(args.kv_data_ptrs[at]) for at in buffers),
            page_stride=size,
            page_span=size,
            pages=min(int(args.kv_data_lens[at]) // size for at in buffers),
            slots_per_page=1,
            runs=(Run(0, size, size),),
            device=device,
        )
    return MirrorViews(
        pool=POOL,
        device=views,
        host=views,
        device_cls="KVArgs",
        host_cls="KVArgs",
        index_unit="page",
        slot_page=1,
        tokens_per_page=int(args.page_size),
        page_indexed=True,
        pinned=None,
    )


def agreed_fields(args: Any, *, split: str, tp: int, pp: int) -> dict[str, str]:
    """Return what both services must agree on whatever their ranks, for a join of two recordings.

    ``tp`` and ``split.kv`` say how the pool is distributed over the ranks.
    """
    page = int(args.page_size)
    heads = int(getattr(args, "kv_head_num", 0) or 0) if split == MHA else 1
    sizes = sorted({int(size) for size in args.kv_item_lens})
    fields = {
        "page_size": f"{page}",
        "dtype": getattr(args, "kv_cache_dtype_str", None) or "",
        "layout": getattr(args, "kv_layout", None) or "",
        "states": ",".join(str(getattr(kind, "value", kind)) for kind in args.state_types),
        "heads": f"{getattr(args, 'total_kv_head_num', '')}" if split == MHA else "",
    }
    if heads and page:
        name = "bytes a token" if split == MLA else "bytes a token and head"
        fields[name] = ",".join(f"{size / page / heads:g}" for size in sizes)
    if pp == 1:
        fields["buffers"] = f"{len(args.kv_item_lens)}"
    fields = {name: value for name, value in fields.items() if value}
    return {**fields, "tp": f"{tp}"} | ({f"split.{POOL}": MHA} if split == MHA else {})


def own_fields(args: Any, *, split: str, tp: int, pp: int) -> dict[str, str]:
    """Return what a peer's registration is compared with; a page's heads count over all ranks."""
    scale = tp if split == MHA else 1
    fields = {"item_len": f"{int(args.kv_item_lens[0]) * scale}"} if args.kv_item_lens else {}
    fields["state_item_lens"] = _lists(args.state_item_lens)
    if pp == 1:
        fields["buffers"] = f"{len(args.kv_data_ptrs)}"
    return fields


def peer_fields(info: Any, *, split: str, tp: int, like: Mapping[str, str]) -> dict[str, str]:
    """Return the same fields of a ``KVArgsRegisterInfo``, as far as it has them."""
    scale = tp if split == MHA else 1
    fields = {
        "item_len": f"{int(info.dst_kv_item_len) * scale}",
        "state_item_lens": _lists(getattr(info, "dst_state_item_lens", ())),
        "buffers": f"{len(info.dst_kv_ptrs)}",
    }
    return {name: fields[name] for name in like}


def _lists(lists: Sequence[Sequence[int]] | None) -> str:
    return ";".join(",".join(str(int(number)) for number in inner) for inner in lists or ())
