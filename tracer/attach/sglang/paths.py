"""Which pages a call moves, by the predicate of the pool class that executes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hicache_dbg.tracer.attach.sglang.geometry import Geometry
from hicache_dbg.tracer.attach.sglang.pages import C4_TOKENS
from hicache_dbg.tracer.attach.spans import slot_spans
from hicache_dbg.tracer.checks.index_space import TokenKernel, pages_named
from hicache_dbg.tracer.ledger import Pages

__all__ = [
    "NOTHING",
    "Call",
    "Path",
    "Rule",
    "by_length",
    "first_of_run",
    "page_ids",
    "page_starts",
    "pages_of_tokens",
    "rows",
    "tokens",
    "whole_pages",
]


# Neither class is frozen: each copy creates one, and freezing would triple the cost.
@dataclass(slots=True, eq=False)
class Call:
    """One call of a pool's copy method, with its indices on the CPU as int64."""

    pool: Any
    geometry: Geometry
    host: Pages
    device: Pages
    io_backend: str
    is_backup: bool


@dataclass(slots=True, eq=False)
class Path:
    """What a call moves.

    ``spans`` is int64 ``[pages, 4]`` for single slots (see
    :class:`hicache_dbg.tracer.mirror.Copy`). ``page_path`` means that whole pages are copied, each
    named by the first index of its run; ``kernel`` is the page format that the token path assumes.
    ``host`` and ``device`` are the indices in the path's own unit, and ``are_pages`` means that
    both were found to form whole pages.
    """

    host_pages: Pages
    device_pages: Pages
    token_granular: bool
    page_path: bool
    host: Pages
    device: Pages
    spans: Pages | None = None
    kernel: TokenKernel | None = None
    are_pages: bool = False


Rule = Callable[[Call], Path]

_EMPTY: Pages = np.zeros(0, np.int64)
#: The path of a call that its pool refuses.
NOTHING = Path(
    host_pages=_EMPTY,
    device_pages=_EMPTY,
    token_granular=False,
    page_path=False,
    host=_EMPTY,
    device=_EMPTY,
)


def rows(call: Call) -> Path:
    """Row-indexed pools: any set of rows, but whole pages for the copy engine or a staged kernel."""
    ranks, rank = call.geometry.shard
    page = call.geometry.slot_page // ranks
    host, device = call.host, call.device
    if ranks > 1:
        host, device = (ids[rank::ranks] // ranks for ids in (host, device))
    host_pages, device_pages = (pages_named(ids, page) for ids in (host, device))
    if host_pages is not None and device_pages is not None:
        return Path(
            host_pages=host_pages,
            device_pages=device_pages,
            token_granular=False,
            page_path=True,
            host=host,
            device=device,
            are_pages=True,
        )
    staged = call.is_backup and getattr(call.pool, "can_use_write_back_jit", False)
    if call.io_backend == "direct" or staged:
        return _runs(host, device, page)
    return _single(host, device, page, None)


def by_length(call: Call) -> Path:
    """``DeepSeekV4PagedHostPool``: whole pages if the number of indices is a multiple of a page."""
    page = call.geometry.slot_page
    if len(call.host) % page == 0 and len(call.device) % page == 0:
        return _runs(call.host, call.device, page)
    return tokens(call)


def tokens(call: Call) -> Path:
    """The token path of ``DeepSeekV4PagedHostPool``: every index is a slot of a C4 page."""
    page = call.geometry.slot_page
    span = next(iter(call.geometry.device.values())).page_span
    path = _single(call.host, call.device, page, C4_TOKENS)
    if (span, page) == (C4_TOKENS.page_bytes, C4_TOKENS.slots):
        return path
    # The kernel assumes another page format than the pool's: what it moves is no range of pages.
    assert path.spans is not None  # noqa: S101 - single slots always have spans
    path.spans[:] = 0
    return path


def whole_pages(call: Call) -> Path:
    """Pools that move rows plus per-page parts, named by the first index of a run."""
    return _runs(call.host, call.device, call.geometry.slot_page)


def first_of_run(call: Call) -> Path:
    """Pools that use the first index of each run as its page, and refuse any other length."""
    page = call.geometry.slot_page
    if len(call.host) % page or len(call.device) % page:
        return NOTHING
    return _runs(call.host, call.device, page)


def pages_of_tokens(call: Call) -> Path:
    """As :func:`first_of_run`, for a method that takes tokens where its pool counts in pages."""
    page = int(call.pool.page_size)
    return page_ids(
        replace(call, host=call.host[::page] // page, device=call.device[::page] // page)
    )


def page_ids(call: Call) -> Path:
    """Methods that take page ids."""
    return Path(
        host_pages=call.host,
        device_pages=call.device,
        token_granular=False,
        page_path=False,
        host=call.host,
        device=call.device,
    )


def page_starts(
    rule: Rule, pool: Any, geometry: Geometry | None, count: int
) -> tuple[int, int] | None:
    """Return which of a call's ``count`` indices name its pages, as ``(first, distance)``.

    None if they are single slots, or if the rule is not known here. The distance is also the number
    of indices per page.
    """
    if geometry is None:
        return None
    if rule is page_ids:
        return 0, 1
    page = int(pool.page_size) if rule is pages_of_tokens else geometry.slot_page
    if rule not in _BY_PAGES or count % page:
        return None
    return (geometry.shard[1] if rule is rows else 0), page


_BY_PAGES: tuple[Rule, ...] = (
    rows,
    by_length,
    first_of_run,
    pages_of_tokens,
    whole_pages,
)


def _runs(host: Pages, device: Pages, page: int) -> Path:
    return Path(
        host_pages=host[::page] // page,
        device_pages=device[::page] // page,
        token_granular=False,
        page_path=True,
        host=host,
        device=device,
    )


def _single(host: Pages, device: Pages, page: int, kernel: TokenKernel | None) -> Path:
    host_pages, device_pages, spans, _ = slot_spans(host, device, page, page)
    return Path(
        host_pages=host_pages,
        device_pages=device_pages,
        token_granular=True,
        page_path=False,
        host=host,
        device=device,
        spans=spans,
        kernel=kernel,
    )
