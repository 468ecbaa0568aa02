"""Compare digests of the same tile from several processes.

Tiles are matched by (shard, request, pool, component, page, layer).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hicache_dbg.tracer.checks.processes import Process
from hicache_dbg.tracer.events import FaultClass, Finding, Stated, Topic
from hicache_dbg.tracer.words import counted, named

__all__ = ["differing_tiles", "tiles_of"]

FEW = 8
#: Shard, request, pool, component, logical page.
Page = tuple[str, str, str, str, int]
#: Page, layer.
Tile = tuple[Page, int]


@dataclass(frozen=True, slots=True)
class _Said:
    """A tile's digest, who stated it, and when."""

    digest: str
    by: str
    time_ns: int


def differing_tiles(
    parties: Iterable[Process], cls: FaultClass, check: str, words: str, advice: str
) -> Iterator[Finding]:
    """Return one finding per pool and component whose tiles differ, about its first request.

    If a process stated a tile twice, the last digest counts.
    """
    wrong: dict[tuple[str, str], list[tuple[Tile, list[_Said]]]] = {}
    for page, statements in _statements(parties).items():
        for layer, said in _differing(statements):
            wrong.setdefault((page[2], page[3]), []).append(((page, layer), said))
    for (pool, component), tiles in wrong.items():
        ((_, request, _, _, number), layer), said = min(
            tiles, key=lambda item: min(one.time_ns for one in item[1])
        )
        pages = sorted({page[4] for (page, _), _ in tiles if page[1] == request})
        requests = len({page[1] for (page, _), _ in tiles})
        got = ", ".join(f"{one.by}: {one.digest}" for one in said)
        yield Finding(
            time_ns=max(one.time_ns for one in said),
            cls=cls,
            pool=pool,
            component=component,
            layer=layer,
            pages=tuple(pages[:FEW]),
            page_count=len(pages),
            expected=said[0].digest,
            got=said[-1].digest,
            message=(
                f"{pool}.{component}: {words}: {counted(len(tiles), 'tile')} of {counted(requests, 'request')}; first: "
                f"request {request}, {named('logical page', pages)}, page {number}, layer {layer} ({got})"
            ),
            advice=advice,
            check=check,
        )


def tiles_of(said: Stated) -> list[tuple[int, str]]:
    """Return the layers and digests of a statement on tiles.

    Empty unless there is one per layer.
    """
    if len(said.layers) != len(said.values):
        return []
    return list(zip(said.layers, said.values, strict=True))


def _statements(parties: Iterable[Process]) -> dict[Page, list[tuple[str, Stated]]]:
    """Return what each process stated about each page, in order, without expanding it to tiles."""
    pages: dict[Page, list[tuple[str, Stated]]] = {}
    for party in parties:
        by = str(party)
        for said in party.on(Topic.TILES):
            page = said.shard, said.request, said.pool, said.component, said.page
            pages.setdefault(page, []).append((by, said))
    return pages


def _differing(statements: Sequence[tuple[str, Stated]]) -> Iterator[tuple[int, list[_Said]]]:
    """Yield the layers of a page for which two processes have different digests."""
    first = statements[0][1]
    if all(
        said.values == first.values and said.layers == first.layers for _, said in statements[1:]
    ):
        return  # the common case
    layers: dict[int, dict[str, _Said]] = {}
    for by, said in statements:
        for layer, digest in tiles_of(said):
            layers.setdefault(layer, {})[by] = _Said(digest, by, said.time_ns)
    for layer, by_party in layers.items():
        if len({one.digest for one in by_party.values()}) > 1:
            yield layer, list(by_party.values())
