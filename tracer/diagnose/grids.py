"""Tiles of each pool as a map: layers down, pages across, the worst known state in each cell."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hicache_dbg.exporters.html.page import Cell, Grid
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.words import counted, named

__all__ = ["grids_of"]

MOST_COLUMNS = 160
#: Fewest columns of a map, however many maps there are.
FEWEST_COLUMNS = 40
#: Most cells of all maps together: a page stays one that a browser opens.
MOST_CELLS = 80_000
#: Most differing parts listed in words; the map shows all of them.
MOST_PIECES = 8
#: Most rows; more layers are grouped.
MOST_ROWS = 128

#: A page's state is that of the operations it took part in. If one of them has a mismatch, whose
#: tiles are listed separately, the other pages of that operation are BESIDE.
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
#: Each query reads every recording, so what one pass can answer is in one query. Long operations list
#: only the first of their bad tiles. If an operation lists all and skipped none, its other tiles are
#: equal.
_POOLS = """
    SELECT pool, max(layers), list(DISTINCT rank), bool_or(
        mismatched > len(bad_tiles)
        OR (mismatched > 0 AND coalesce(list_sum(map_values(skipped)), 0) > 0))
    FROM copies GROUP BY pool ORDER BY pool
"""
_BAD = """
    SELECT pool, rank, layers, list(page ORDER BY page) FROM (
        SELECT pool, rank, tile[2] AS page, list(DISTINCT tile[1] ORDER BY tile[1]) AS layers
        FROM (SELECT pool, rank, unnest(bad_tiles) AS tile FROM copies) GROUP BY ALL)
    GROUP BY ALL ORDER BY min(page), pool, rank, layers
"""


_CELLS = list(Cell)


@dataclass(frozen=True, slots=True)
class _Bad:
    """Pages of one rank that differ in the same layers."""

    rank: int
    layers: Sequence[int]
    pages: Sequence[int]


def grids_of(database: Database) -> Iterator[Grid]:
    """Yield one map for each pool that moved pages with known ids."""
    pools = database.sql(_POOLS)
    unlisted = {pool for pool, *_, some in pools if some}
    pages: dict[str, list[tuple[int, Cell]]] = defaultdict(list)
    for pool, page, state in database.sql(_PAGES):
        cell = _CELLS[state]
        if cell is Cell.BESIDE and pool not in unlisted:
            cell = Cell.VERIFIED
        pages[pool].append((page, cell))
    bad: dict[str, list[_Bad]] = defaultdict(list)
    for pool, *where in database.sql(_BAD):
        bad[pool].append(_Bad(*where))
    for pool, layers, ranks, _ in pools:
        if pages[pool]:
            # An operation on a subset of layers has fewer of them than the pool.
            tall = max([1, layers, *(one.layers[-1] + 1 for one in bad[pool])])
            room = MOST_CELLS // sum(map(bool, pages.values()))
            yield _grid(pool, tall, pages[pool], bad[pool], len(ranks), room)


def _grid(  # noqa: PLR0917
    pool: str,
    layers: int,
    pages: Sequence[tuple[int, Cell]],
    bad: Sequence[_Bad],
    ranks: int,
    room: int,
) -> Grid:
    """Lay out the pages that moved, in the order of their ids, in as many columns as fit.

    ``room`` is the number of cells there may be.
    """
    most_rows = max(1, min(MOST_ROWS, room // FEWEST_COLUMNS))
    tall = -(-layers // most_rows)
    rows = -(-layers // tall)
    columns = max(FEWEST_COLUMNS, min(MOST_COLUMNS, room // rows))
    wide = -(-len(pages) // columns)
    groups = [pages[at : at + wide] for at in range(0, len(pages), wide)]
    worst = [max(cell for _, cell in group) for group in groups]
    cells = [list(worst) for _ in range(rows)]
    column = {page: at for at, group in enumerate(groups) for page, _ in group}
    for one in bad:
        across = {column[page] for page in one.pages if page in column}
        for row in {layer // tall for layer in one.layers}:
            for at in across:
                cells[row][at] = Cell.MISMATCHED
    return Grid(
        pool=pool,
        columns=[(group[0][0], group[-1][0]) for group in groups],
        sizes=[len(group) for group in groups],
        rows=[(row * tall, min(row * tall + tall, layers) - 1) for row in range(rows)],
        cells=cells,
        bad=_where(bad, ranks),
        ranks=ranks,
    )


def _where(bad: Sequence[_Bad], ranks: int) -> str:
    """Describe which tiles differ: pages by differing layers, and the rank if there are several."""
    told = []
    for one in bad[:MOST_PIECES]:
        rank = f" on rank {one.rank}" if ranks > 1 else ""
        told.append(
            f"{named('Layer', one.layers)} of {named('host page', one.pages)}{rank} came back different"
        )
    if more := sum(len(one.pages) for one in bad[MOST_PIECES:]):
        told.append(f"so did tiles of {counted(more, 'more page', ',')}")
    return "; ".join(told)
