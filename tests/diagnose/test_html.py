"""The HTML page: self-contained, true to the events, readable at any width, light and dark."""

import html
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.diagnose.test_gather import LOAD, recorded
from tests.exporters.samples import TIME_NS, copied, finding, health, started
from tests.services import require

from hicache_dbg.exporters.html.page import Cell
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.diagnose.meanings import MEANINGS
from hicache_dbg.tracer.diagnose.page import MOST_FINDINGS
from hicache_dbg.tracer.events import Event, FaultClass

BAD_CELL = Cell.MISMATCHED.words
PAGES = {"host_pages": (4, 7), "device_pages": (1, 2), "generations": (1, 1)}
BAD = {"mismatched": 2, "verified": 6, "bad_tiles": ((2, 7), (3, 7))}
CONFLICT = (
    "host pages 7: freed while a copy has it open; this access: free on MainThread at a.py:3 f; "
    "previous access: load 3 on worker at b.py:9 g; allocated: alloc on MainThread at c.py:1 h"
)
RUN: list[Event] = [
    started(unrecognised=("<script>alert(1)</script>",)),
    copied(op_id=1, time_ns=TIME_NS, **PAGES),
    copied(op_id=2, time_ns=TIME_NS + 2 * 10**6, **(LOAD | PAGES | BAD)),
    finding(),
    finding(cls=FaultClass.SLOT_REUSE, pool="deepseek_v4_c128", message=CONFLICT, pages=(7,)),
    health(copies=2),
]
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page of a run with a mismatch and a conflict."""
    written = tmp_path / "run.html"
    assert main(["diagnose", str(recorded(tmp_path, "run", RUN)), "--html", str(written)]) == 1
    return written


class Tags(HTMLParser):
    """Collects every tag, and whether all opened tags were closed."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the tag."""
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the tag that was opened last."""
        assert self._open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(page: Path) -> None:
    """Every tag is closed, every link is internal, and nothing is fetched."""
    text = page.read_text(encoding="utf-8")
    tags = Tags(text).seen
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in tags if tag == "a"}
    assert links == {f"#{name}" for name in ids if name and not name.startswith("say")}
    assert not [tag for tag, attributes in tags if attributes.get("src") or tag == "link"]
    assert "url(" not in text
    assert "<script>alert(1)" not in text


def test_the_map_shows_the_tiles_that_differ(page: Path) -> None:
    """The map marks layers 2 and 3 of host page 7 only; page 4 was compared and is equal."""
    cells = re.findall(r"<title>layer (\d+), host page (\d+): ([^<]*)</title>", page.read_text())
    assert len(cells) == 8
    bad = {(int(layer), int(number)) for layer, number, state in cells if state == BAD_CELL}
    assert bad == {(2, 7), (3, 7)}
    assert {state for *_, state in cells} == {BAD_CELL, Cell.VERIFIED.words}
    assert "Layers 2..3 of host page 7 came back different" in page.read_text()


def test_the_story_of_the_bad_page_marks_the_conflicting_pair(page: Path) -> None:
    """Backup, bad load, then the two conflicting accesses and the allocation of the page."""
    text = page.read_text()
    title = re.search(r"The first bad tile: [^<]*", text)
    assert title is not None
    assert title[0] == "The first bad tile: deepseek_v4_c128, host page 7, layer 2"
    steps = re.findall(
        r'<li class="([^"]*)"><(?:span|b)[^>]*>(.*?)</(?:span|b)>(.*?)(?:<|</li>)', text
    )
    told = [(marks, when, words.strip()) for marks, when, words in steps]
    assert [marks for marks, *_ in told] == ["", "bad", "", "", "bad"]
    assert told[0][1:] == ("+0.000 ms", "backup 1, device page 2 to host page 7")
    assert told[1][1:] == ("+2.000 ms", "load 2, host page 7 to device page 2: this page differs")
    assert told[3][1:] == ("first: ", "load 3 on worker at b.py:9 g")
    assert told[4][1:] == ("then, which must not be: ", "free on MainThread at a.py:3 f")


def page_text(folder: Path, *events: Event) -> str:
    """Return the page of other events."""
    written = folder / "other.html"
    main(["diagnose", str(recorded(folder, "other", list(events))), "--html", str(written)])
    return written.read_text(encoding="utf-8")


def test_accesses_to_another_pool_are_another_story(tmp_path: Path) -> None:
    """A conflict in one pool is not shown under the bad tile of another."""
    other = finding(cls=FaultClass.SLOT_REUSE, pool="index_k", message=CONFLICT, pages=(7,))
    text = page_text(tmp_path, *RUN[:3], other)
    assert "The first bad tile: deepseek_v4_c128" in text
    assert "which must not be" not in text.partition('id="story"')[2].partition("</section>")[0]


def test_a_tile_that_nobody_looked_at_did_not_come_back_equal(tmp_path: Path) -> None:
    """A skipped tile in an operation with a mismatch is not shown as equal."""
    bad = LOAD | PAGES | {"mismatched": 4, "verified": 0, "skipped": {"unwitnessed": 4}}
    text = page_text(tmp_path, copied(**bad, bad_tiles=tuple((layer, 7) for layer in range(4))))
    assert Cell.BESIDE.words in text
    assert f": {Cell.VERIFIED.words}<" not in text


def test_what_was_compared_in_part_or_going_down_did_not_come_back_equal(tmp_path: Path) -> None:
    """A load that was partly skipped and a compared backup do not make a page equal."""
    half = LOAD | PAGES | {"verified": 4, "skipped": {"sampled_out": 4}}
    down = {"host_pages": (9,), "device_pages": (9,), "generations": (1,), "skipped": {}}
    text = page_text(tmp_path, copied(**half), copied(**down, witnessed=0, verified=4))
    cells = re.findall(r"<title>layer 0, host page (\d+): ([^<]*)</title>", text)
    states = (Cell.PARTLY, Cell.PARTLY, Cell.WITNESSED)
    assert cells == [(page, state.words) for page, state in zip("479", states, strict=True)]


def test_operations_on_some_layers_show_on_the_map(tmp_path: Path) -> None:
    """A bad tile of any layer is on the map, and an operation without layers does not crash it."""
    one = LOAD | PAGES | {"layers": 1, "mismatched": 1, "verified": 1, "bad_tiles": ((3, 7),)}
    text = page_text(tmp_path, copied(**one), copied(pool="none", layers=0, **PAGES))
    assert f"layer 3, host page 7: {BAD_CELL}" in text


def test_what_is_said_first_is_the_answer(page: Path) -> None:
    """The page starts with one word, the cause with its pool and pages, and the compared counts."""
    text = page.read_text()
    (head,) = re.findall(r"<h1>(.*?)</h1>", text)
    assert re.sub(r"<.*?>", "", head) == "Corrupt: row_width, index_k, backup, 1 finding"
    assert "6 tiles came back equal" in text
    assert "2 came back different" in text
    assert "HICACHE_DBG_CHECKSUM=loads" in text


def test_both_ends_are_drawn_to_one_scale(page: Path) -> None:
    """132 of 256 bytes is 51.56 % of the width, and the rest is marked as missing."""
    widths = re.findall(r'class="(bar|lost)" style="width: ([\d.]+)%">', page.read_text())
    assert widths == [("bar", "100.00"), ("bar", "51.56"), ("lost", "48.44")]
    assert "The host's page has room for slots 0..32; never copied: slots 33..63." in (
        html.unescape(page.read_text())
    )


def browsed(page: Path, *options: str) -> bytes:
    """Return what Chromium prints for ``page``."""
    require(shutil.which("chromium"), "chromium is not installed")
    command = [*BROWSER, f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout


def paper(picture: Path) -> bytes:
    """Return the colour of a PNG's first pixel (8 bits per channel), which no PNG filter changes."""
    data, at, packed = picture.read_bytes(), 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    return zlib.decompress(packed)[1:4]


@pytest.mark.service
@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_fits_its_window(page: Path, width: int) -> None:
    """Nothing is wider than the window, down to 360 pixels, and no script failed."""
    frame = page.parent / "frame.html"
    frame.write_text(
        f'<iframe src="{page.name}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        "<script>onload = () => { const inside = document.querySelector('iframe').contentDocument;"
        "document.body.dataset.wide = inside.documentElement.scrollWidth;"
        "const grid = inside.querySelector('svg.grid'); grid.focus();"
        "for (const key of ['ArrowRight', 'ArrowDown', 'ArrowDown'])"
        "  grid.dispatchEvent(new KeyboardEvent('keydown', {key}));"
        "document.body.dataset.said = inside.getElementById('say1').textContent }</script>"
    )
    dom = browsed(frame, "--allow-file-access-from-files", "--dump-dom").decode()
    (wide,) = re.findall(r'data-wide="(\d+)"', dom)
    assert int(wide) <= width
    assert 'data-said="layer 2, host page 7: came back different, once at least"' in dom


@pytest.mark.service
def test_the_page_is_light_or_dark_as_its_reader_asks(page: Path) -> None:
    """Screenshots in both schemes have the background of the reader's choice."""
    papers: dict[str, bytes] = {}
    for scheme, options in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        picture = page.parent / f"{scheme}.png"
        browsed(page, *options, "--window-size=1100,2400", f"--screenshot={picture}")
        papers[scheme] = paper(picture)
    assert papers == {"light": b"\xff\xff\xff", "dark": b"\x14\x17\x1b"}


def test_a_finding_without_a_wrong_byte_is_not_called_corruption(tmp_path: Path) -> None:
    """Unpinned host memory is a fault, but no tile differs."""
    fault = finding(cls=FaultClass.PINNING, message="not pinned")
    text = page_text(tmp_path, started(), copied(**(LOAD | PAGES)), fault)
    (head,) = re.findall(r"<h1>([^<]*)", text)
    assert head == "Fault found, no wrong byte seen"
    assert html.escape(MEANINGS[FaultClass.PINNING]) in text


def test_a_run_that_is_wrong_everywhere_has_a_page_of_bounded_size(tmp_path: Path) -> None:
    """Only a few differences are told in detail; the map has them all."""
    one = LOAD | {"mismatched": 1, "verified": 1, "generations": (1,)}
    runs = [
        copied(**(one | {"host_pages": (page,), "bad_tiles": ((page % 3, page),)}))
        for page in range(0, 3000, 2)
    ]
    odd = [
        copied(**(one | {"host_pages": (7,), "bad_tiles": ((n, 7), (n + 1, 7))})) for n in (5, 9)
    ]
    text = page_text(tmp_path, started(), *runs, *odd)
    assert len(text) < 400_000
    assert "Layers 5..6, 9..10 of host page 7 came back different" in text
    assert len(re.findall("came back different", text)) < 700


def noisy(pools: int, layers: int) -> list[Event]:
    """A run in which every other tile of every pool came back different."""
    one = LOAD | {"layers": layers, "mismatched": layers // 2, "generations": (1,)}
    return [
        copied(
            pool=f"pool{pool}",
            host_pages=(page,),
            bad_tiles=tuple((layer, page) for layer in range(page % 2, layers, 2)),
            **one,
        )
        for pool in range(pools)
        for page in range(320)
    ]


def test_a_page_of_many_pools_full_of_differences_can_be_opened(tmp_path: Path) -> None:
    """Maps share a bound: the more there are, the more pages and layers a cell stands for."""
    text = page_text(tmp_path, started(), *noisy(16, 80))
    assert len(text) < 12_000_000
    assert text.count('<svg class="grid"') == 16
    assert "A cell stands for up to" in text
    cells = re.findall(r'<rect class="c\d" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)">', text)
    assert sum(int(wide) * int(tall) for *_, wide, tall in cells) <= 80_000


def test_equal_neighbours_on_a_large_map_are_one_block(tmp_path: Path) -> None:
    """The blocks cover each cell once, and their words name the layers and pages that they cover."""
    pages = {"host_pages": tuple(range(200)), "generations": (1,) * 200}
    bad = {"bad_tiles": ((7, 50), (8, 50)), "mismatched": 2}
    rest = {"skipped": {}, "verified": 250 * 200 - 2}
    moved = copied(layers=250, **(LOAD | pages | bad | rest))
    text = page_text(tmp_path, started(), moved)
    cells = [
        tuple(map(int, at))
        for at in re.findall(
            r'<rect class="c\d" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)">', text
        )
    ]
    covered = [
        (x, y)
        for left, top, w, h in cells
        for x in range(left, left + w)
        for y in range(top, top + h)
    ]
    assert len(cells) < 20
    assert sorted(covered) == [(x, y) for x in range(100) for y in range(125)]
    assert re.findall(rf"<title>(.*): {BAD_CELL}</title>", text) == [
        "layers 6 to 9, host pages 50 to 51"
    ]
    assert "<br>to 249</span>" in text
    assert "A cell stands for up to 2 pages and 2 layers, and shows the worst of them." in text


def test_what_is_left_out_is_counted_and_where_it_is_told(tmp_path: Path) -> None:
    """Of many findings and of a page's many operations the page shows some, and says so."""
    bad = LOAD | PAGES | BAD
    found = [finding(check=f"check{n}", count=2) for n in range(MOST_FINDINGS + 3)]
    steps = [copied(**PAGES, time_ns=TIME_NS + n) for n in range(30)]
    text = html.unescape(
        page_text(tmp_path, started(), *steps, copied(**bad, time_ns=TIME_NS + 99), *found)
    )
    again = f"hicache-dbg diagnose {tmp_path / 'other'}"
    held = f"{MOST_FINDINGS + 6} more findings and 3 more kinds of them"
    assert text.count('<details class="finding') == MOST_FINDINGS
    assert f"first finding of {MOST_FINDINGS} kinds; left out: {held}. {again}" in text
    assert "The page took part in 31 operations, of which those around the first bad one" in text
    assert f"{again}" in text.partition("The page took part in")[2]


def test_a_page_that_shows_everything_says_nothing_of_what_is_left_out(tmp_path: Path) -> None:
    """One finding of each kind, and all operations of the page."""
    text = page_text(tmp_path, *RUN[:3], finding(count=1))
    assert "Shown is the first finding" not in text
    assert "The page took part in" not in text


def test_the_map_of_a_pool_that_differs_is_seen_first(tmp_path: Path) -> None:
    """Before those of all pools that are equal, whatever their names."""
    good = copied(pool="a", **(LOAD | PAGES))
    text = page_text(tmp_path, started(), good, copied(pool="b", **(LOAD | PAGES | BAD)))
    maps = text.partition('id="map"')[2].partition("</section>")[0]
    assert re.findall(r"<h3>(.*)</h3>", maps) == ["b", "a"]


def test_several_ranks_on_one_map_are_told_apart(tmp_path: Path) -> None:
    """A cell shows the worst of all ranks, the map says so, and the text names the rank."""
    bad = LOAD | PAGES | BAD
    text = page_text(tmp_path, started(), copied(**PAGES, rank=0), copied(**bad, rank=1))
    assert "the worst of 2 ranks in each cell" in text
    assert "Layers 2..3 of host page 7 on rank 1 came back different" in text
