"""Run something in a forked child, in bounded time."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

__all__ = ["FORKS", "held", "in_child"]

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


@contextmanager
def held(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold a lock on another thread, which a forked child lacks."""
    holds, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(30)
    try:
        yield
    finally:
        leave.set()
        thread.join()
