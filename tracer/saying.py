"""Print to standard error before logging is set up."""

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Print one line; if stderr is closed, full or absent, drop the line silently."""
    if sys.stderr is None:  # print would fall back to stdout, which belongs to the host
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"hicache-dbg: {text}", file=sys.stderr)  # noqa: T201 - as above
