"""The code in the documents runs, and the files that they name exist."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
#: Names in backquotes that are files or folders of this repository.
NAMED = re.compile(r"`((?:\.\./)?[\w./]+/[\w./]*|[\w/]+\.(?:py|md|yml))`")


def test_what_is_shown_works() -> None:
    """The blocks run as they stand, one after the other, and their assertions hold."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    shown: dict[str, object] = {"__name__": "extending"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), shown)  # noqa: S102 - the page's own code


def test_the_script_to_start_from_runs() -> None:
    """The script of docs/pools.md runs as it stands: its pages are evicted and loaded back."""
    (script,) = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "docs" / "pools.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    shown: dict[str, Any] = {"__name__": "script"}
    exec(compile(script, "docs/pools.md", "exec"), shown)  # noqa: S102 - the page's own code
    assert shown["cache"].stats.loads == 1


@pytest.mark.parametrize("page", ["docs/extending.md", "CONTRIBUTING.md", "README.md"])
def test_every_place_that_is_named_is_there(page: str) -> None:
    """A file or folder in backquotes exists, from the root or in the folder named before it."""
    text = (ROOT / page).read_text()
    for name in NAMED.findall(text):
        assert list(ROOT.glob(name)) or list(ROOT.rglob(name.rpartition("/")[2])), name


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))], ids=lambda page: page.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A relative link in the documents points to a file of this repository."""
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
