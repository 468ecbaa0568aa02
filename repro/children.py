"""Processes that a run starts: interrupts leave them to their parent, and none outlives it."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker

__all__ = ["die_with", "die_with_parent", "uninterrupted"]

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Start children that never see SIGINT, which a terminal sends to all of its processes.

    The parent ends them. It receives an interrupt that arrives meanwhile when this context ends.
    """
    resource_tracker.ensure_running()  # multiprocessing's own; starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """Have the kernel end this process, which :mod:`multiprocessing` started, with its parent."""
    parent = parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid)


def die_with(parent: int) -> None:
    """Have the kernel end this process when ``parent``, which started it, is gone, even if killed.

    Strictly, when the parent's thread ends that started it.
    """
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)
