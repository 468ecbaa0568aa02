"""A mirror as the tracer sees it, and one copy on it: what attachments hand to the probe."""

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
    """A pool and its copy in the next tier: one view a component and end.

    Each is itself only: two caches may have pools of one name.

    Args:
        pool: the pool's name.
        device: views of the device end, by component.
        host: views of the host end, by component.
        device_cls: class name of the device pool.
        host_cls: class name of the host pool: the one whose formula sized it.
        index_unit: what an index of this pool counts: token, slot or page.
        slot_page: how many indices make up a page.
        tokens_per_page: how many tokens a page holds.
        page_indexed: whether dimension 0 of the device tensor is pages.
        one_item: whether copies find a page at both ends by one item size, the host page's.
        pinned: whether the host memory is really pinned; None where that is not known.
        pinning: what became of the wish to page-lock the host memory; None where nobody says.
        generation: reads the current allocation generations of host pages; None where nobody
            keeps them, and a page is taken to be the one it was.
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
    #: How often each host page began to be written, int64 [host pages].
    writes: Pages = field(init=False, repr=False)
    #: How many pages every component has at the device end.
    device_pages: int = field(init=False, repr=False)
    #: The host end's layout.
    layout: str = field(init=False, repr=False)
    #: Bytes of a page of one layer at the device end, all components, padding included.
    item_bytes: int = field(init=False, repr=False)
    #: The slot range of a whole page.
    whole_page: tuple[int, int] = field(init=False, repr=False)
    #: Bytes of a page and of a slot of one layer at the host end.
    host_bytes: tuple[int, int] = field(init=False, repr=False)
    #: A copy of each shape that was described so far: the next one differs in a few fields.
    described: dict[object, Copied] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pages = max((view.pages for view in self.host.values()), default=0)
        layout = next(iter(self.host.values())).layout if self.host else "none"
        for name, value in (
            ("writes", np.zeros(pages, np.int64)),
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
        """Layers of the device end."""
        return max(view.layers for view in self.device.values())

    def still(self, pages: Pages, generations: Pages, writes: Pages) -> bool:
        """Whether these host pages are of these generations and were not written again.

        Asked after the bytes were read on another thread than the engine's: a writer counts
        itself before its first byte moves, so a yes means that what was read was whole.
        """
        same = self.generation is None or bool((self.generation(pages) == generations).all())
        return same and bool((self.writes[pages] == writes).all())

    def info(self) -> MirrorInfo:
        """The record of both ends' geometry, as read off the tensors."""
        return MirrorInfo(
            pool=self.pool,
            index_unit=self.index_unit,
            slot_page=self.slot_page,
            tokens_per_page=self.tokens_per_page,
            device=_end(Tier.DEVICE, self.device_cls, self.device, None),
            host=_end(Tier.HOST, self.host_cls, self.host, self.pinned),
        )


def _bytes(views: Iterable[View]) -> tuple[int, int]:
    """Of a page and of a slot of one layer, all components together."""
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


# Not frozen: it is made on a hot path, and that would take three times as long.
@dataclass(slots=True, eq=False)
class Copy:
    """One operation on one pool, as the attachment saw it.

    ``host_pages`` and ``device_pages`` are int64 arrays of equal length, in the operation's own
    order; ``generations`` those of the host pages when the operation was submitted; ``h`` and
    ``d`` the counts of indices as the method was given them. ``layers`` are the pool's own layer
    numbers, ``model_layers`` the model's numbers of the same. ``spans`` holds, for a
    token-granular copy, the first and last-plus-one slot of each page at the host end and at the
    device end (int64 [pages, 4]), and is None where whole pages move. ``requests`` are the spans of
    the requests it is for; it may grow while the operation is under way.
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
        """Trace id and span id of each of ``requests`` so far, in hexadecimal; of none, empty ones."""
        return in_hex(self.requests)

    @property
    def tiers(self) -> tuple[Tier, Tier]:
        """Source and destination."""
        return DIRECTION[self.op]

    @property
    def tiles(self) -> int:
        """How many tiles the operation moves."""
        return len(self.mirror.device) * len(self.layers) * len(self.host_pages)

    @property
    def fits(self) -> bool:
        """Whether every page id lies inside its end's tensors."""
        if self._fits is None:
            mirror = self.mirror
            host, device = len(mirror.writes), mirror.device_pages
            self._fits = inside(self.host_pages, host) and inside(self.device_pages, device)
        return self._fits

    @property
    def moved_bytes(self) -> int:
        """Bytes the copy moves: the host end's page bytes, which production copies use."""
        a_page, a_slot = self.mirror.host_bytes
        if self.spans is None:
            return a_page * len(self.layers) * len(self.host_pages)
        slots = int((self.spans[:, 1] - self.spans[:, 0]).sum())
        return a_slot * len(self.layers) * slots


_NOBODY = (("", ""),)


def in_hex(spans: Sequence[SpanIds]) -> tuple[tuple[str, str], ...]:
    """Ids as they are written; of no spans, one pair of nothing."""
    if not spans:
        return _NOBODY
    written = tuple((f"{trace:032x}", f"{span:016x}") for trace, span in tuple(spans))
    return written or _NOBODY
