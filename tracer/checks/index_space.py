"""Check that the indices of one copy mean what its code path takes them for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.inside import inside
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.words import counted, named, ranges

__all__ = ["IndexUse", "TokenKernel", "are_pages", "check_indices", "pages_named"]

CHECK = "index_space"
FEW = 8


@dataclass(frozen=True, slots=True)
class TokenKernel:
    """The page format that a token-granular copy kernel was written for, in bytes.

    Slot ``s`` of page ``p`` has ``value_bytes`` at ``p * page_bytes + s * value_bytes``, and
    ``scale_bytes`` in a second run behind all values of the page.
    """

    slots: int
    value_bytes: int
    scale_bytes: int
    page_bytes: int

    def rows_of(self, ids: Pages, item_bytes: int) -> list[int]:
        """Return the rows of ``item_bytes`` bytes that the kernel touches for these ``ids``."""
        page, slot = np.divmod(ids, self.slots)
        values = page * self.page_bytes + slot * self.value_bytes
        scales = page * self.page_bytes + self.slots * self.value_bytes + slot * self.scale_bytes
        ends = (
            values,
            values + self.value_bytes - 1,
            scales,
            scales + self.scale_bytes - 1,
        )
        return sorted({int(row) for end in ends for row in end // item_bytes})


@dataclass(frozen=True, slots=True)
class IndexUse:
    """How one operation used the indices it was given.

    Args:
        pool: the pool's name.
        op: backup or load.
        unit: what an index counts.
        host: host indices, int64, as given.
        device: device indices, int64, as given.
        slot_page: number of indices per page.
        page_path: whether whole pages are copied, each named by the first index of its run.
        host_limit: number of indices at the host end.
        device_limit: number of indices at the device end.
        item_bytes: bytes of a page of one layer.
        kernel: the page format of the token path's kernel, if that path ran.
    """

    pool: str
    op: str
    unit: str
    host: Pages
    device: Pages
    slot_page: int
    page_path: bool
    host_limit: int
    device_limit: int
    item_bytes: int
    kernel: TokenKernel | None = None

    @property
    def ends(self) -> tuple[tuple[str, Pages, int], tuple[str, Pages, int]]:
        """Both ends, each as name, indices, and number of valid indices."""
        return ("host", self.host, self.host_limit), ("device", self.device, self.device_limit)


@dataclass(frozen=True, slots=True)
class _Fault:
    message: str
    expected: str
    got: str
    advice: str
    pages: list[int]


def check_indices(use: IndexUse, *, time_ns: int, rank: int = 0, op_id: int = 0) -> list[Finding]:
    """Return at most one finding: the first thing wrong with the indices names the cause."""
    for check in _CHECKS:
        fault = check(use)
        if fault is not None:
            return [_finding(use, fault, time_ns=time_ns, rank=rank, op_id=op_id)]
    return []


def _finding(use: IndexUse, fault: _Fault, *, time_ns: int, rank: int, op_id: int) -> Finding:
    return Finding(
        time_ns=time_ns,
        rank=rank,
        op_id=op_id,
        cls=FaultClass.INDEX_SPACE,
        pool=use.pool,
        op=use.op,
        pages=tuple(fault.pages[:FEW]),
        page_count=len(fault.pages),
        expected=fault.expected,
        got=fault.got,
        message=f"{use.pool}: this {use.op} {fault.message}",
        advice=fault.advice,
        check=CHECK,
    )


def _wrong_kernel(use: IndexUse) -> _Fault | None:
    """Detect that the token path mistook this pool's page format for another pool's."""
    kernel = use.kernel
    if kernel is None or (kernel.page_bytes, kernel.slots) == (use.item_bytes, use.slot_page):
        return None
    destination = use.host if use.op == "backup" else use.device
    meant = np.unique(destination // use.slot_page).tolist()
    touched = kernel.rows_of(destination, use.item_bytes)
    return _Fault(
        f"of {counted(len(use.host), use.unit)} took the token path: its kernel takes a page for "
        f"{counted(kernel.slots, 'slot')} in {kernel.page_bytes} B, and a page of this pool "
        f"is {counted(use.slot_page, use.unit)} in one row of "
        f"{use.item_bytes} B, so the kernel writes {named('row', touched)} where {named('row', meant)} was meant",
        f"{named('row', meant)} of {use.item_bytes} B",
        named("row", touched),
        f"give this pool whole pages of {counted(use.slot_page, use.unit)} only",
        touched,
    )


def _counts(use: IndexUse) -> _Fault | None:
    if len(use.host) == len(use.device):
        return None
    return _Fault(
        f"pairs {len(use.host)} host with {counted(len(use.device), f'device {use.unit}')}",
        counted(len(use.device), f"host {use.unit}"),
        counted(len(use.host), f"host {use.unit}"),
        "give both ends one index for each unit that moves",
        [],
    )


def _no_pages(use: IndexUse) -> _Fault | None:
    """Detect that whole pages were copied for indices that do not form whole pages."""
    if not use.page_path or not len(use.host):
        return None
    broken = [name for name, ids, _ in use.ends if not are_pages(ids, use.slot_page)]
    if not broken:
        return None
    host, device = (ids[:: use.slot_page] // use.slot_page for _, ids, _ in use.ends)
    lost = len(use.host) - _delivered(use, host, device)
    asked = len(np.unique(use.host // use.slot_page))
    length = "no multiple" if len(use.host) % use.slot_page else "a multiple"
    return _Fault(
        f"of {counted(len(use.host), use.unit)} ({length} of {use.slot_page}) took the page path, but the "
        f"{' and the '.join(broken)} indices are no whole pages: "
        f"it copies {counted(len(host), 'page')} (host {ranges(host[:FEW].tolist())} with device "
        f"{ranges(device[:FEW].tolist())}), older bytes stay in {lost} of the {counted(len(use.host), use.unit)}, and "
        f"{use.unit}s nobody asked for are overwritten",
        f"{counted(len(use.host), f'single {use.unit}')} in {counted(asked, 'host page')}",
        f"{counted(len(host), 'whole page')} of {use.slot_page}",
        "copy single tokens through the method that is made for it, or leave HiSparse or the host tier off",
        sorted(set(host.tolist())),
    )


def _delivered(use: IndexUse, host: Pages, device: Pages) -> int:
    """Return how many of the requested pairs the copied pages really bring."""
    run = np.arange(len(use.host)) // use.slot_page
    host_page, host_slot = np.divmod(use.host, use.slot_page)
    device_page, device_slot = np.divmod(use.device, use.slot_page)
    same = (host_page == host[run]) & (device_page == device[run]) & (host_slot == device_slot)
    return int(same.sum())


def _out_of_range(use: IndexUse) -> _Fault | None:
    for name, ids, limit in use.ends:
        if not inside(ids, limit):
            beyond = ids[(ids < 0) | (ids >= limit)]
            first = int(beyond[0])
            return _Fault(
                f"names {len(beyond)} {name} {use.unit}s that do not exist (first: {first}; the {name} end has "
                f"{limit})",
                f"{name} {use.unit}s 0..{limit - 1}",
                f"{first}",
                "look for a logical index where a physical one belongs, or a token where a page belongs",
                sorted(set((beyond // use.slot_page).tolist())),
            )
    return None


def are_pages(ids: Pages, page: int) -> bool:
    """Return whether ``ids`` are page-aligned runs of ``page`` consecutive indices."""
    return pages_named(ids, page) is not None


def pages_named(ids: Pages, page: int) -> Pages | None:
    """Return the pages named by page-aligned runs of ``page`` consecutive indices.

    None if ``ids`` do not have that form.
    """
    if len(ids) % page:
        return None
    pages: Pages = ids[::page] // page
    meant = (pages * page)[:, None] + _steps(page)
    return pages if meant.tobytes() == ids.tobytes() else None


@lru_cache(maxsize=64)
def _steps(page: int) -> Pages:
    return np.arange(page)


#: In order: the first that applies names the cause.
_CHECKS: tuple[Callable[[IndexUse], _Fault | None], ...] = (
    _counts,
    _wrong_kernel,
    _no_pages,
    _out_of_range,
)
