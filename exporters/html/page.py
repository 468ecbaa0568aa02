"""What the page shows, as plain data, and the page made of it.

Everything is in the one file: no network, no font, no script from elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.resources import files
from pathlib import Path

__all__ = [
    "Bar",
    "Cell",
    "Geometry",
    "Grid",
    "HtmlError",
    "Item",
    "Page",
    "Step",
    "Story",
    "Table",
    "write_html",
]


class HtmlError(Exception):
    """The page can't be written; the message says why and what to do."""


class Cell(IntEnum):
    """What is known of the tiles of a cell; the larger value is shown where several hold."""

    NOTHING = 0  #: never moved
    SKIPPED = 1  #: moved, not looked at
    WITNESSED = 2  #: backed up, digest kept
    VERIFIED = 3  #: compared, equal
    BESIDE = 4  #: moved together with a tile that differs; which tiles differ was not kept
    MISMATCHED = 5  #: compared, different


@dataclass(frozen=True, slots=True)
class Grid:
    """Tiles of one pool: a row a layer, a column some pages.

    ``columns`` are the first and last page of each; ``cells`` one row of states a layer.
    """

    pool: str
    columns: Sequence[tuple[int, int]]
    cells: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a page. ``part`` marks the two accesses that conflict."""

    when: str
    what: str
    detail: str = ""
    bad: bool = False
    part: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to one bad page, oldest first."""

    title: str
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Bar:
    """One end of a component: ``value`` bytes, ``share`` of the longer end, 0 to 1."""

    label: str
    value: int
    share: float


@dataclass(frozen=True, slots=True)
class Geometry:
    """Both ends of a component, a slot of each drawn to one scale."""

    title: str
    ends: Sequence[Bar]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A hypothesis or a finding: a short label, a sentence, more of it, and what to do."""

    label: str
    title: str
    text: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the columns named in ``numbers`` are set to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page. ``state`` is ``bad``, ``good`` or ``unknown``."""

    verdict: str
    state: str
    advice: str
    tiles: Sequence[tuple[str, int, str]]
    findings: Sequence[Item]
    hypotheses: Sequence[Item]
    grids: Sequence[Grid]
    story: Story | None
    geometry: Sequence[Geometry]
    paths: Table
    unchecked: Sequence[str]
    source: str
    version: str


def write_html(path: Path, page: Page) -> None:
    """Write ``page``.

    Raises:
        HtmlError: jinja2 is not installed, or the file can't be written.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise HtmlError(
            "the page needs the jinja2 package, which is not installed: pip install 'hicache-dbg[cli]'"
        ) from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = files(__name__.rpartition(".")[0])
    parts = {
        name: folder.joinpath(f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")
    }
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    try:
        path.write_text(template.render(page=page, Cell=Cell, **parts), encoding="utf-8")
    except OSError as error:
        raise HtmlError(f"cannot write {path}: {error.strerror or error}") from error
