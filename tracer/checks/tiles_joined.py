"""Digests of the same tile from several processes, compared: (shard, request, pool, page, layer)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hicache_dbg.tracer.checks.processes import Process
from hicache_dbg.tracer.checks.slots import ranges
from hicache_dbg.tracer.events import FaultClass, Finding, Stated, Topic

__all__ = ["differing_tiles", "tiles_of"]

FEW = 8
#: Shard, request, pool, component, logical page, layer.
Tile = tuple[str, str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class _Said:
    """A tile's digest, who said it, and when."""

    digest: str
    by: str
    time_ns: int


def differing_tiles(
    parties: Iterable[Process], cls: FaultClass, check: str, words: str, advice: str
) -> Iterator[Finding]:
    """One finding a pool and component whose tiles differ, about its first request.

    Of a tile that a process stated twice the last digest counts.
    """
    wrong: dict[tuple[str, str], list[tuple[Tile, list[_Said]]]] = {}
    for tile, by_party in _tiles(parties).items():
        if len({one.digest for one in by_party.values()}) > 1:
            wrong.setdefault((tile[2], tile[3]), []).append((tile, list(by_party.values())))
    for (pool, component), tiles in wrong.items():
        (_, request, _, _, page, layer), said = min(
            tiles, key=lambda item: min(one.time_ns for one in item[1])
        )
        pages = sorted({tile[4] for tile, _ in tiles if tile[1] == request})
        requests = len({tile[1] for tile, _ in tiles})
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
                f"{pool}.{component}: {words}: {len(tiles)} tiles of {requests} requests; first: "
                f"request {request}, logical pages {ranges(pages)}, page {page}, layer {layer} ({got})"
            ),
            advice=advice,
            check=check,
        )


def tiles_of(said: Stated) -> list[tuple[int, str]]:
    """The layers and digests of a statement on tiles; none if it has not one value a layer."""
    if len(said.layers) != len(said.values):
        return []
    return list(zip(said.layers, said.values, strict=True))


def _tiles(parties: Iterable[Process]) -> dict[Tile, dict[str, _Said]]:
    tiles: dict[Tile, dict[str, _Said]] = {}
    for party in parties:
        for said in party.on(Topic.TILES):
            for layer, digest in tiles_of(said):
                tile = _tile(said, layer)
                tiles.setdefault(tile, {})[str(party)] = _Said(digest, str(party), said.time_ns)
    return tiles


def _tile(said: Stated, layer: int) -> Tile:
    return said.shard, said.request, said.pool, said.component, said.page, layer
