"""A mirror and a copy on it, as the tracer sees them: what attachments hand to the probe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache_dbg.tracer.checks.pinning import Pinning
from hicache_dbg.tracer.events import (
    DIRECTION,
    ComponentInfo,
    Copied,
    EndInfo,
    MirrorInfo,
    Op,
    Tier,
)
from hicache_dbg.tracer.inside import inside
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.view import View

__all__ = ["Copy", "MirrorViews", "SpanIds", "in_hex"]

SpanIds = tuple[int, int]
"""Trace id and span id, as OpenTelemetry's own numbers."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MirrorViews:
    """A pool and its copy in the next tier: one view per component and end.

    Compared by identity, because two caches may have pools of the same name.

    Args:
        pool: the pool's name.
        device: views of the device end, by component.
        host: views of the host end, by component.
        device_cls: class name of the device pool.
        host_cls: class name of the host pool, whose formula sized it.
        index_unit: what an index of this pool counts: token, slot or page.
        slot_page: number of indices per page.
        tokens_per_page: number of tokens per page.
        page_indexed: whether dimension 0 of the device tensor counts pages.
        one_item: whether copies address a page at both ends by one item size, the host page's.
        pinned: whether the host memory is really pinned; None if unknown.
        pinning: the outcome of page-locking the host memory; None if unknown.
        generation: reads the current allocation generations of host pages; None if nobody keeps
            them, in which case pages count as unchanged.
        writes: how often writing each host page was begun, int64 [host pages]; by default a new
            count. Several views of the same memory share one.
    """

    pool: str
    device: dict[str, View]
    host: dict[str, View]
    device_cls: str
    host_cls: str
    index_unit: str
    slot_page: int
    tokens_per_page: int
    page_indexed: bool
    pinned: bool | None
    generation: Callable[[Pages], Pages] | None = None
    pinning: Pinning | None = None
    one_item: bool = False
    writes: Pages = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    #: Number of pages that every component has at the device end.
    device_pages: int = field(init=False, repr=False)
    #: The host end's layout.
    layout: str = field(init=False, repr=False)
    #: Bytes of a page of one layer at the device end, all components, padding included.
    item_bytes: int = field(init=False, repr=False)
    #: The slot range of a whole page.
    whole_page: tuple[int, int] = field(init=False, repr=False)
    #: Bytes of a page and of a slot of one layer at the host end.
    host_bytes: tuple[int, int] = field(init=False, repr=False)
    #: One template event per shape of copy: events of the same shape differ in few fields.
    described: dict[object, Copied] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pages = max((view.pages for view in self.host.values()), default=0)
        layout = next(iter(self.host.values())).layout if self.host else "none"
        for name, value in (
            ("writes", self.writes if self.writes.size else np.zeros(pages, np.int64)),
            ("device_pages", min((view.pages for view in self.device.values()), default=0)),
            ("layout", layout),
            ("item_bytes", sum(view.page_span for view in self.device.values())),
            ("whole_page", (0, next((view.slots_per_page for view in self.device.values()), 0))),
            ("host_bytes", _bytes(self.host.values())),
            ("described", {}),
        ):
            object.__setattr__(self, name, value)

    @property
    def layers(self) -> int:
        """Number of layers at the device end."""
        return max(view.layers for view in self.device.values())

    def still(self, pages: Pages, generations: Pages, writes: Pages) -> bool:
        """Return whether these host pages have these generations and were not written again.

        Call it after reading their bytes on a thread other than the engine's. A writer increments
        the count before its first byte moves, so True means that the bytes read were consistent.
        """
        same = self.generation is None or bool((self.generation(pages) == generations).all())
        return same and bool((self.writes[pages] == writes).all())

    def info(self) -> MirrorInfo:
        """Return the geometry of both ends, as read off the tensors."""
        return MirrorInfo(
            pool=self.pool,
            index_unit=self.index_unit,
            slot_page=self.slot_page,
            tokens_per_page=self.tokens_per_page,
            device=_end(Tier.DEVICE, self.device_cls, self.device, None),
            host=_end(Tier.HOST, self.host_cls, self.host, self.pinned),
        )


def _bytes(views: Iterable[View]) -> tuple[int, int]:
    """Return the bytes of a page and of a slot of one layer, over all components."""
    each = [(view.page_span, view.slot_bytes) for view in views]
    return sum(page for page, _ in each), sum(slot for _, slot in each)


def _end(tier: Tier, cls: str, views: dict[str, View], pinned: bool | None) -> EndInfo:
    first = next(iter(views.values()), None)
    return EndInfo(
        tier=tier,
        cls=cls,
        layout=first.layout if first else "none",
        device=first.device if first else "none",
        slots_per_page=first.slots_per_page if first else 0,
        pinned=pinned,
        components=tuple(
            ComponentInfo(
                name=name,
                dtype=view.dtype,
                slot_bytes=view.slot_bytes,
                page_bytes=view.page_span,
                pages=view.pages,
                layers=view.layers,
            )
            for name, view in views.items()
        ),
    )


# Not frozen: it is created on a hot path, and freezing would triple the cost of creating it.
@dataclass(slots=True, eq=False)
class Copy:
    """One operation on one pool, as the attachment saw it.

    ``host_pages`` and ``device_pages`` are int64 arrays of equal length, in the operation's own
    order; ``generations`` are those of the host pages when the operation was submitted; ``h`` and
    ``d`` are the counts of indices as the method was given them. ``layers`` are the pool's own
    layer numbers, ``model_layers`` the model's numbers of the same layers. For a token-granular
    copy, ``spans`` holds the first and last-plus-one slot of each page at the host end and at the
    device end (int64 ``[pages, 4]``); it is None if whole pages move. ``requests`` are the spans of
    the requests the operation serves; it may grow while the operation is in flight.
    """

    mirror: MirrorViews
    op: Op
    host_pages: Pages
    device_pages: Pages
    generations: Pages
    h: int
    d: int
    token_granular: bool
    io_backend: str
    layers: tuple[int, ...]
    model_layers: tuple[int, ...]
    op_id: int = 0
    spans: Pages | None = None
    requests: Sequence[SpanIds] = ()
    _fits: bool | None = field(default=None, init=False, repr=False)

    @property
    def asked_by(self) -> tuple[tuple[str, str], ...]:
        """Trace and span id of each of ``requests`` so far, in hexadecimal.

        One empty pair if none.
        """
        return in_hex(self.requests)

    @property
    def tiers(self) -> tuple[Tier, Tier]:
        """Source and destination tier."""
        return DIRECTION[self.op]

    @property
    def fits(self) -> bool:
        """Whether every page id lies within its end's tensors."""
        if self._fits is None:
            mirror = self.mirror
            host, device = len(mirror.writes), mirror.device_pages
            self._fits = inside(self.host_pages, host) and inside(self.device_pages, device)
        return self._fits

    @property
    def moved_bytes(self) -> int:
        """Bytes the copy moves, by the host end's page size, which production copies use."""
        a_page, a_slot = self.mirror.host_bytes
        if self.spans is None:
            return a_page * len(self.layers) * len(self.host_pages)
        slots = int((self.spans[:, 1] - self.spans[:, 0]).sum())
        return a_slot * len(self.layers) * slots


_NOBODY = (("", ""),)


def in_hex(spans: Sequence[SpanIds]) -> tuple[tuple[str, str], ...]:
    """Return span ids in hexadecimal; one pair of empty strings if there are none."""
    if not spans:
        return _NOBODY
    written = tuple((f"{trace:032x}", f"{span:016x}") for trace, span in tuple(spans))
    return written or _NOBODY
