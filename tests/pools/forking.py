"""Run something in a forked child, in bounded time."""

import os
import signal
from collections.abc import Callable

import pytest

__all__ = ["FORKS", "in_child"]

FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(*calls: Callable[[], object]) -> list[str]:
    """Return what each call gave or raised in a forked child that has 20 s for all of them."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits
        try:
            for call in calls:
                try:
                    said = f"{call()}"
                except Exception as error:  # noqa: BLE001 - that is what is asked for
                    said = f"{type(error).__name__}: {error}"
                os.write(write, said.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        lines = told.read().splitlines()
    _, status = os.waitpid(child, 0)
    return [*lines, *([] if os.waitstatus_to_exitcode(status) == 0 else [f"status {status}"])]
