"""Every ``hicache-dbg`` command line of the documentation is one that the command takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hicache_dbg.tracer.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: A command in a line of its own, up to its explanation or to where a pipe takes over.
_ALONE = re.compile(
    r"^(?: {4}|\$ )*(?:\S+/)?hicache-dbg ((?:'[^']*'|\S)+(?: (?:'[^']*'|[^\s|#])+)*)", re.MULTILINE
)
_INSIDE = re.compile(r"`hicache-dbg ([^`]+)`")
_VERB = re.compile(r"[a-z]+$")
#: A sentence may name a verb without what it works on.
_LACKS = re.compile(r"(?i)missing (argument|parameter|option)")


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each command line on a page."""
    text = page.read_text().replace("\\\n", " ")
    for found in (*_ALONE.finditer(text), *_INSIDE.finditer(text)):
        words = shlex.split(re.sub(r"[\[\]]", "", found[1]))
        # "hicache-dbg started rank=0 ..." is a line of output, "on|off" two verbs at once.
        if _VERB.match(words[0]) and not any("=" in word for word in words[1:2]):
            yield ["1" if word == "N" else word for word in words if word != "..."]


def taken(arguments: list[str]) -> None:
    """Parse a command line as the command does, and run nothing."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    name: str | None = "hicache-dbg"
    while arguments or not hasattr(command, "resolve_command"):
        context = command.make_context(name, arguments, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        # Click 8.2 renamed it.
        held = vars(context).get("_protected_args") or vars(context).get("protected_args", ())
        rest = [*held, *context.args]
        name, command, arguments = command.resolve_command(context, rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_to_type_is_taken(page: Path) -> None:
    """Verbs and options exist, and values are of their type."""
    for arguments in commands(page):
        try:
            taken(arguments)
        except typer.Exit:  # --help
            pass
        except Exception as error:  # noqa: BLE001 - the message needs the command line
            if not _LACKS.search(str(error)):
                pytest.fail(f"hicache-dbg {shlex.join(arguments)}: {error}")


def test_the_pages_have_commands() -> None:
    """The patterns find them; an option that does not exist is refused."""
    assert sum(1 for page in PAGES for _ in commands(page)) > 80
    with pytest.raises(Exception, match="--lats"):
        taken(["diagnose", "run", "--lats"])
