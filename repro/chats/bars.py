"""Filter other libraries' progress bars out of standard error."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

__all__ = ["without_bars"]

#: Marks of a progress bar, with and without a total: ``30%|``, ``12.5it/s``, ``?it/s``.
_BAR = re.compile(r"\d%\||(it/s|s/it)")


@contextmanager
def without_bars() -> Iterator[None]:
    """Capture standard error, and at the end write it without progress bars."""
    held = StringIO()
    try:
        with redirect_stderr(held):
            yield
    finally:
        lines = re.split(r"[\r\n]+", held.getvalue())
        said = [line for line in lines if line.strip() and not _BAR.search(line)]
        sys.stderr.write("".join(f"{line}\n" for line in said))
