# mypy: disable-error-code="import-not-found"
"""Faults of released versions, and planted ones, on the real kernels: each must be found and named."""

from collections.abc import Callable, Iterator

import torch
from builders import index_k, mha_of_sglang, mla, v4
from driving import Mover, controller, indices, operation
from setups import DEVICE, Setup, bytes_of
from tracing import Row, Traced, copies, findings

from hicache_dbg.tracer.events import FaultClass

__all__ = ["faults"]

C4 = v4("dsv4_hisparse_c4", 37440, 64)
C128 = v4("deepseek_v4_c128", 1728, 256)


def faults(only: str = "") -> Iterator[Row]:
    """Yield one row for each fault."""
    for name, case in _CASES.items():
        if only and not any(part in name for part in only.split(",")):
            continue
        traced = Traced()
        try:
            result, kept = case(traced)
        except Exception as error:  # noqa: BLE001 - a row, whatever it is
            result, kept = f"{type(error).__name__}: {error}"[:300], False
        finally:
            traced.attachment.detach()
        yield Row("fault", name, result, "found and named", kept)


def _scattered(count: int, slots: int, seed: int) -> torch.Tensor:
    return torch.randperm(slots, generator=torch.Generator().manual_seed(seed))[:count]


def _slot(pages: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the 576 value and 8 scale bytes of C4 slots, [slots, 584]."""
    pages, at = pages.cpu()[numbers // 64], numbers % 64
    values = pages[:, : 64 * 576].reshape(-1, 64, 576)[torch.arange(len(at)), at]
    scales = pages[:, 64 * 576 : 64 * 584].reshape(-1, 64, 8)[torch.arange(len(at)), at]
    return torch.cat([values, scales], 1)


def _page_path(count: int, *, loads: bool) -> Callable[[Traced], tuple[str, bool]]:
    """Copy as many single slots as make up whole pages, as HiSparse does: SGLang copies whole pages."""

    def case(traced: Traced) -> tuple[str, bool]:
        setup = C4("layer_first", 2, 400)
        host, device = _scattered(count, 800 * 64, 1), _scattered(count, 400 * 64, 2)
        pool = setup.pool
        for layer in pool.kv_buffer:
            layer.random_(0, 256)
        before = [t.cpu() for t in (pool.kv_buffer if loads else setup.devices)]
        ends = host.to(DEVICE), device.to(DEVICE)
        if loads:
            for layer in range(2):
                pool.load_to_device_per_layer(setup.pool_device, *ends, layer, "kernel")
        else:
            pool.backup_from_device_all_layer(setup.pool_device, *ends, "kernel")
        events = traced.take()
        to, at = (device, host) if loads else (host, device)
        target = setup.devices if loads else pool.kv_buffer
        wrong = sum(
            int((_slot(new, to) != _slot(old, at)).any(1).sum())
            for new, old in zip(target, before, strict=True)
        )
        setup.destroy()
        found = findings(events)
        told = f"{wrong} of {2 * count} tokens wrong; {[f.cls.value for f in found]}"
        kept = bool(found) and {f.cls for f in found} == {FaultClass.INDEX_SPACE} and wrong > 0
        return f"{told}: {found[0].got if found else '-'}", kept

    return case


def _other_rows(traced: Traced) -> tuple[str, bool]:
    """Copy 3 unaligned ids of a C128 pool: the token path's kernel assumes C4's page size."""
    setup = C128("layer_first", 2, 200)
    rows = setup.pool.kv_buffer[0]
    rows.fill_(0xA5)
    before, ids = rows.clone(), torch.tensor([512, 513, 514])
    ends = ids.to(DEVICE), ids.to(DEVICE)
    setup.pool.backup_from_device_all_layer(setup.pool_device, *ends, "kernel")
    found = findings(traced.take())
    changed = (rows != before).any(1).nonzero().flatten().tolist()
    setup.destroy()
    kept = len(found) == 1 and found[0].cls is FaultClass.INDEX_SPACE
    kept = kept and (found[0].expected, found[0].got) == ("row 2 of 1728 B", "rows 173..174, 194")
    return f"rows {changed} written; {[(f.cls.value, f.expected, f.got) for f in found]}", kept


def _row_width(traced: Traced) -> tuple[str, bool]:
    """Build a bf16 index-K under the fp8 host formula: reported at once, with the tokens that move."""
    setup = index_k("layer_first", 2, 40, bf16=True)
    at_start = findings(traced.take())
    flat = setup.devices[0].view(torch.uint8).reshape(-1)
    pages = torch.tensor([3, 7])
    Mover(setup, "kernel").backup(indices(pages, 64), indices(pages, 64).to(DEVICE))
    traced.take()
    moved = [
        setup.pool.index_k_with_scale_buffer[0, page].cpu().equal(flat[page * 8448 :][:8448].cpu())
        for page in pages.tolist()
    ]
    setup.destroy()
    message = at_start[0].message if at_start else "-"
    kept = [f.cls for f in at_start] == [FaultClass.ROW_WIDTH] and all(moved)
    kept = kept and "33p..33p+32" in message
    return f"page p moved tokens 33p..33p+32: {moved}; before a byte moved: {message[:120]}", kept


def _flipped(traced: Traced) -> tuple[str, bool]:
    """Flip one bit of pinned memory between backup and load."""
    setup = mla("page_first", 4, 40)
    pages = torch.arange(20)
    mover, host = Mover(setup, "kernel"), indices(pages, 64)
    mover.backup(host, indices(pages, 64).to(DEVICE)).synchronize()
    setup.pool.kv_buffer.view(torch.uint8)[5 * 64 + 7, 2, 0, 11] ^= 1
    mover.load(host, indices(pages + 20, 64).to(DEVICE))
    events = traced.take()
    found, load = findings(events), copies(events)[-1]
    setup.destroy()
    where = [(f.cls.value, f.layer, f.pages) for f in found]
    kept = where == [("bit_flip", 2, (5,))] and (load.mismatched, load.verified) == (1, 79)
    return f"{where}, {load.mismatched} mismatched, {load.verified} verified", kept


def _delayed(accessor: str) -> Callable[[Traced], tuple[str, bool]]:
    """Read 8 layers that are still loading, through an accessor that waits for them or does not."""

    def case(traced: Traced) -> tuple[str, bool]:
        setup = mha_of_sglang("layer_first", 8, 40)
        owner = controller(setup, "kernel")
        pages = torch.arange(8)
        source, target = (indices(pages + at, 64).to(DEVICE) for at in (1, 21))
        host = setup.pool.alloc(8 * 64)
        owner.write_queue.append(operation(host, source))
        owner.start_writing()
        owner.ack_write_queue[-1].finish_event.synchronize()
        want = [bytes_of(t[source], 1).clone() for t in setup.devices[:8]]
        owner.load_queue.append(operation(host, target))
        engine = getattr(owner, "l2_transfer_engine", None)
        stream = owner.load_stream if engine is None else engine.host_to_device_stream
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)  # noqa: SLF001 - what SGLang delays with
        owner.layer_done_counter.set_consumer(owner.start_loading())
        read = getattr(setup.pool_device, accessor)
        got = [read(layer)[target].clone() for layer in range(8)]
        events = traced.take()
        stale = sum(not bytes_of(one, 1).equal(right) for one, right in zip(got, want, strict=True))
        found = findings(events)
        setup.destroy()
        gated = accessor == "get_key_buffer"
        classes = {f.cls for f in found}
        kept = (stale, classes) == ((0, set()) if gated else (8, {FaultClass.READ_BEFORE_LOAD}))
        layers = sorted({f.layer for f in found})
        return f"{stale} of 8 layers stale; {[c.value for c in classes]} of layers {layers}", kept

    return case


def _double_free(traced: Traced) -> tuple[str, bool]:
    """Free pages twice in a host pool that does not check for it."""
    setup = C4("layer_first", 2, 40)
    pages: torch.Tensor = setup.pool.alloc(128)
    setup.pool.free(pages)
    setup.pool.free(pages[:64])
    found = findings(traced.take())
    setup.destroy()
    kept = [f.cls for f in found] == [FaultClass.DOUBLE_FREE]
    return f"{[(f.cls.value, f.pages) for f in found]}", kept


def _single_slots(traced: Traced) -> tuple[str, bool]:
    """Copy the clean twin: a number of slots that is not a multiple of a page."""
    setup: Setup = C4("layer_first", 2, 400)
    host, device = _scattered(63, 800 * 64, 1), _scattered(63, 400 * 64, 2)
    ends = host.to(DEVICE), device.to(DEVICE)
    setup.pool.backup_from_device_all_layer(setup.pool_device, *ends, "kernel")
    events = traced.take()
    right = _slot(setup.pool.kv_buffer[0], host).equal(_slot(setup.devices[0], device))
    found = findings(events)
    setup.destroy()
    return f"bytes right: {right}; {len(found)} findings", right and not found


_CASES: dict[str, Callable[[Traced], tuple[str, bool]]] = {
    **{f"{n} slots backed up as pages": _page_path(n, loads=False) for n in (64, 128, 256)},
    **{f"{n} slots loaded as pages": _page_path(n, loads=True) for n in (64, 128)},
    "63 slots (clean twin)": _single_slots,
    "3 unaligned ids of C128": _other_rows,
    "bf16 index-K, fp8 host formula": _row_width,
    "a flipped bit on the host": _flipped,
    "delayed load, ungated accessor": _delayed("_get_key_buffer"),
    "delayed load, gated accessor (clean twin)": _delayed("get_key_buffer"),
    "pages freed twice": _double_free,
}
