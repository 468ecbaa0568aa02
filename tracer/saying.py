"""A word on standard error where no logging is set up yet."""

import contextlib
import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Print one line; a stream that is closed, full or not there costs the line and nothing else."""
    if sys.stderr is None:  # print would take standard output, which is the host's own
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"hicache-dbg: {text}", file=sys.stderr)  # noqa: T201 - as above
