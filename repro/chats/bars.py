"""Standard error without the progress bars of others."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

__all__ = ["without_bars"]

#: What a bar says of itself, with and without an end in sight: ``30%|``, ``12.5it/s``, ``?it/s``.
_BAR = re.compile(r"\d%\||(it/s|s/it)")


@contextmanager
def without_bars() -> Iterator[None]:
    """Hold back what is written to standard error, and write all of it but the bars at the end."""
    held = StringIO()
    try:
        with redirect_stderr(held):
            yield
    finally:
        lines = re.split(r"[\r\n]+", held.getvalue())
        said = [line for line in lines if line.strip() and not _BAR.search(line)]
        sys.stderr.write("".join(f"{line}\n" for line in said))
