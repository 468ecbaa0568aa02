"""Tiles of each pool as a map: layers down, pages across, the worst that is known in each cell."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hicache_dbg.exporters.html.page import Cell, Grid
from hicache_dbg.tracer.checks.slots import ranges
from hicache_dbg.tracer.diagnose.database import Database

__all__ = ["grids_of"]

MOST_COLUMNS = 160
#: More layers are drawn as this many bands.
MOST_ROWS = 128

#: A page's state is that of the operations it was in: of one with a mismatch, whose tiles are
#: listed apart, the others are beside it.
_PAGES = f"""
    SELECT pool, page,
           CASE WHEN bool_or(mismatched > 0) THEN {Cell.BESIDE}
                WHEN bool_or(back AND verified > 0 AND skipped = 0) THEN {Cell.VERIFIED}
                WHEN bool_or(back AND verified > 0) THEN {Cell.PARTLY}
                WHEN bool_or(verified + witnessed > 0) THEN {Cell.WITNESSED}
                ELSE {Cell.SKIPPED} END
    FROM (SELECT pool, mismatched, verified, witnessed, op IN ('load', 'fetch', 'recv') AS back,
                 coalesce(list_sum(map_values(skipped)), 0) AS skipped, unnest(host_pages) AS page
          FROM copies)
    GROUP BY pool, page ORDER BY pool, page
"""  # noqa: S608 - nothing of it comes from outside
_LAYERS = "SELECT pool, max(layers) FROM copies GROUP BY pool ORDER BY pool"
#: Long operations list the first of their bad tiles; where one lists all and skipped none, its others
#: are equal.
_BAD = """
    SELECT pool, tile[1], tile[2] FROM (SELECT pool, unnest(bad_tiles) AS tile FROM copies)
    GROUP BY ALL ORDER BY ALL
"""
_UNLISTED = """
    SELECT DISTINCT pool FROM copies
    WHERE mismatched > len(bad_tiles)
       OR (mismatched > 0 AND coalesce(list_sum(map_values(skipped)), 0) > 0)
"""


def grids_of(database: Database) -> Iterator[Grid]:
    """One map a pool that moved pages whose ids are known."""
    pages: dict[str, list[tuple[int, Cell]]] = defaultdict(list)
    unlisted = {pool for (pool,) in database.sql(_UNLISTED)}
    for pool, page, state in database.sql(_PAGES):
        cell = Cell(state)
        if cell is Cell.BESIDE and pool not in unlisted:
            cell = Cell.VERIFIED
        pages[pool].append((page, cell))
    bad: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for pool, layer, page in database.sql(_BAD):
        bad[pool].append((layer, page))
    for pool, layers in database.sql(_LAYERS):
        if pages[pool]:
            # An operation on some layers only has fewer of them than the pool.
            tall = max([1, layers, *(layer + 1 for layer, _ in bad[pool])])
            yield _grid(pool, tall, pages[pool], bad[pool])


def _grid(
    pool: str,
    layers: int,
    pages: Sequence[tuple[int, Cell]],
    bad: Sequence[tuple[int, int]],
) -> Grid:
    """Pages that moved, in the order of their ids, in as many columns as fit."""
    wide = -(-len(pages) // MOST_COLUMNS)
    groups = [pages[at : at + wide] for at in range(0, len(pages), wide)]
    tall = -(-layers // MOST_ROWS)
    rows = -(-layers // tall)
    cells = [[max(cell for _, cell in group) for group in groups] for _ in range(rows)]
    column = {page: at for at, group in enumerate(groups) for page, _ in group}
    for layer, page in bad:
        if page in column and layer // tall < rows:
            cells[layer // tall][column[page]] = Cell.MISMATCHED
    return Grid(
        pool=pool,
        columns=[(group[0][0], group[-1][0]) for group in groups],
        sizes=[len(group) for group in groups],
        cells=cells,
        bad=_where(bad),
    )


def _where(bad: Sequence[tuple[int, int]]) -> str:
    """Which tiles differ: pages by the layers that they differ in."""
    layers: dict[int, list[int]] = defaultdict(list)
    for layer, page in bad:
        layers[page].append(layer)
    alike: dict[str, list[int]] = defaultdict(list)
    for page, own in sorted(layers.items()):
        alike[ranges(own)].append(page)
    return "; ".join(
        f"{'Layer' if own.isdecimal() else 'Layers'} {own} of host page{'s' * (len(pages) > 1)} "
        f"{ranges(pages)} came back different"
        for own, pages in alike.items()
    )
