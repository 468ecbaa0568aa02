"""What README and the story quote of a run is what the command prints today, numbers aside."""

import re
from pathlib import Path

import pytest

from hicache_dbg.tracer.cli.main import main

ROOT = Path(__file__).parents[2]
#: Small enough to be quick, with pools too small for it, so that pages travel.
SMALL = ["--sessions", "8", "--rounds", "2", "--max-tokens", "24", "--device-pages", "14"]
#: Sessions end in another order each time.
_ORDER = re.compile(r"counts=\{[^}]*\}")


def plain(text: str) -> str:
    """Return the words of a text, without its line breaks and numbers."""
    return " ".join(re.sub(r"[\d,.]*\d", "N", _ORDER.sub("counts", text)).split())


def quoted(page: str, after: str) -> list[str]:
    """Return the parts of the first indented block behind ``after``, cut where lines are left out."""
    text = (ROOT / page).read_text().partition(after)[2]
    assert text, f"{page} no longer says {after!r}"
    block = re.search(r"(?:^ {4}.*\n|^\n)+", text, re.MULTILINE)
    assert block is not None
    return [plain(part) for part in re.split(r"^ +\.\.\.$", block[0], flags=re.MULTILINE)]


@pytest.mark.parametrize(
    ("page", "after", "options", "code"),
    [
        ("README.md", "prints, among other lines:\n", [], 0),
        ("README.md", "made before a byte moved:\n", ["--fault", "host_sized_for_fp8"], 1),
        ("docs/story.md", "were never built:\n", ["--fault", "fix_on_dead_class"], 1),
    ],
    ids=["README-clean", "README-fault", "story-dead-class"],
)
def test_what_a_page_quotes_is_printed(
    capsys: pytest.CaptureFixture[str], page: str, after: str, options: list[str], code: int
) -> None:
    """Each quoted part appears in the output of a smaller run with the same options."""
    assert main(["repro", *SMALL, *options]) == code
    printed = plain(capsys.readouterr().out)
    parts = quoted(page, after)
    assert parts
    for part in parts:
        assert part in printed
