"""The contents of the report page as plain data, and the page rendered from it.

Everything is in one file: no network access, no external fonts or scripts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hicache_dbg.exporters.parts import PartMissingError
from hicache_dbg.exporters.writing import why_not

__all__ = [
    "Bar",
    "Block",
    "Cell",
    "Geometry",
    "Grid",
    "HtmlError",
    "Item",
    "Page",
    "Share",
    "Step",
    "Story",
    "Table",
    "write_html",
]


class HtmlError(Exception):
    """The page cannot be written; the message says why and what to do."""


class Cell(IntEnum):
    """What is known of the tiles of a cell; of several states the largest value is shown."""

    NOTHING = 0
    SKIPPED = 1
    WITNESSED = 2
    PARTLY = 3
    VERIFIED = 4
    BESIDE = 5
    MISMATCHED = 6

    @property
    def words(self) -> str:
        """The state in words, as the legend and the map show it."""
        return _WORDS[self]


_WORDS = {
    Cell.NOTHING: "never moved",
    Cell.SKIPPED: "moved, not looked at",
    Cell.WITNESSED: "backed up, never came back",
    Cell.PARTLY: "came back with others, of which some were compared and are equal",
    Cell.VERIFIED: "came back equal",
    Cell.BESIDE: "moved together with one that differs",
    Cell.MISMATCHED: "came back different, once at least",
}


#: Most cells of a map that are drawn one by one, each with its own words.
MOST_SINGLE_CELLS = 4096


class Block(NamedTuple):
    """A rectangle of cells in one state: where its first cell is, and how many there are."""

    cell: Cell
    column: int
    row: int
    wide: int
    tall: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Tiles of one pool: a row per layer, a column per group of pages.

    ``columns`` are the first and last page of each column, ``sizes`` how many pages of each moved;
    ``rows`` are the first and last layer of each row, whose states ``cells`` holds. A cell shows the
    worst state of its pages, layers and, with several ``ranks``, of theirs. ``bad`` names the
    differing tiles in words.
    """

    pool: str
    columns: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    rows: Sequence[tuple[int, int]]
    cells: Sequence[Sequence[Cell]]
    bad: str = ""
    ranks: int = 1

    @property
    def grouped(self) -> str:
        """What each cell stands for if it is more than a page of a layer, in words."""
        pages, layers = max(self.sizes), max(last - first + 1 for first, last in self.rows)
        if pages == layers == 1:
            return ""
        parts = [
            f"{most:,} {what}" for most, what in ((pages, "pages"), (layers, "layers")) if most > 1
        ]
        return f"A cell stands for up to {' and '.join(parts)}, and shows the worst of them."

    @property
    def states(self) -> list[Cell]:
        """The states that occur, worst first."""
        return sorted({cell for row in self.cells for cell in row}, reverse=True)

    @property
    def blocks(self) -> list["Block"]:
        """The cells to draw: each by itself, or neighbors in one state together if they are many."""
        if sum(map(len, self.cells)) <= MOST_SINGLE_CELLS:
            return [
                Block(cell, column, row, 1, 1)
                for row, cells in enumerate(self.cells)
                for column, cell in enumerate(cells)
            ]
        return list(_merged(self.cells))

    def said(self, block: "Block") -> str:
        """Return the layers, pages and state of a block in words."""
        layers = _span("layer", self.rows[block.row][0], self.rows[block.row + block.tall - 1][1])
        pages = _span(
            "host page",
            self.columns[block.column][0],
            self.columns[block.column + block.wide - 1][1],
        )
        return f"{layers}, {pages}: {block.cell.words}"


def _merged(cells: Sequence[Sequence[Cell]]) -> Iterator[Block]:
    """Yield neighbors in one state as one block: along a row, then rows that are cut alike."""
    open_now: dict[tuple[Cell, int, int], int] = {}  # state, column and width, to the first row
    for row, line in enumerate([*cells, ()]):
        runs: dict[tuple[Cell, int, int], int] = {}
        column = 0
        for cell, same in groupby(line):
            wide = len(list(same))
            runs[cell, column, wide] = open_now.get((cell, column, wide), row)
            column += wide
        for (cell, at, wide), first in open_now.items():
            if (cell, at, wide) not in runs:
                yield Block(cell, at, first, wide, row - first)
        open_now = runs


def _span(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a page: when, what, and details."""

    when: str
    what: str
    detail: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to one bad page, oldest first, and the accesses that conflict.

    ``unshown`` says how many steps are left out, and how to see them.
    """

    title: str
    steps: Sequence[Step]
    accesses: Sequence[Step] = ()
    unshown: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One end of a component: the bytes of a page there, as a share (0 to 1) of the longer end."""

    label: str
    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Geometry:
    """The two differing ends of a component, a page of each drawn to the same scale."""

    title: str
    ends: Sequence[Bar]
    lost: str
    note: str


@dataclass(frozen=True, slots=True)
class Item:
    """A hypothesis or a finding: a label and its color, a sentence, details, and advice.

    ``means`` explains the label.
    """

    label: str
    title: str
    means: str = ""
    text: str = ""
    advice: str = ""
    tone: str = ""  # bad, good, unknown, or nothing
    folded: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the columns named in ``numbers`` are right-aligned."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar: how many tiles, in which color, with which words."""

    count: int
    cell: Cell
    words: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page. ``state`` is ``bad``, ``good`` or ``unknown``, ``answer`` a word or two.

    ``back`` are the tiles that returned from a lower tier, by outcome; ``stored`` says how many
    were backed up. ``caveat`` states what limits the verdict.
    """

    answer: str
    headline: str
    verdict: str
    state: str
    advice: str
    caveat: str
    facts: Sequence[str]
    back: Sequence[Share]
    stored: str
    findings: Sequence[Item]
    unshown: str
    hypotheses: Sequence[Item]
    ruled_out: Sequence[Item]
    grids: Sequence[Grid]
    story: Story | None
    geometry: Sequence[Geometry]
    same_size: str
    paths: Table
    unchecked: Sequence[str]
    words: Sequence[tuple[str, str]]
    source: str
    version: str


def write_html(path: Path, page: Page) -> None:
    """Render ``page`` to ``path``.

    Raises:
        HtmlError: the file cannot be written.
        PartMissingError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise PartMissingError("the page needs", "jinja2", "cli") from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = files(__name__.rpartition(".")[0])
    parts = {
        name: folder.joinpath(f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")
    }
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    try:
        path.write_text(template.render(page=page, **parts), encoding="utf-8")
    except OSError as error:
        raise HtmlError(f"cannot write {path}: {why_not(path, error)}") from error
