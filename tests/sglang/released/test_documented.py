"""What docs/sglang.md tells an operator to type is an option of this SGLang's server."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import re
from pathlib import Path

import sglang

PAGE = Path(__file__).parents[3] / "docs" / "sglang.md"
#: In backquotes, and not behind a command of ours.
_OPTION = re.compile(r"`--([a-z][a-z-]+)")
#: Early versions add each option to a parser; later ones make them from the fields of a class.
_DEFINED = re.compile(r'^\s+(?:"--([a-z-]+)",|([a-z_]+): )', re.MULTILINE)


def test_every_option_that_the_page_names_exists() -> None:
    """An option that the server does not know would end it at its start, in the middle of a night."""
    folder = Path(sglang.__path__[0]) / "srt"
    files = [folder / "server_args.py", *folder.glob("arg_groups/**/*.py")]
    text = "\n".join(path.read_text() for path in files)
    known = {(a or b).replace("_", "-") for a, b in _DEFINED.findall(text)}
    named = set(_OPTION.findall(PAGE.read_text()))
    assert {"enable-hierarchical-cache", "max-total-tokens"} <= named
    assert named - known == set()
