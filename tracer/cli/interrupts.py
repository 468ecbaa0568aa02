"""Interrupts that Python would drop, because they land where it cannot raise an exception."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["kept_interrupts"]

#: How long after its loss an interrupt is sent again: the finalizer that it landed in is over by then.
AGAIN_S = 0.05


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """Send an interrupt again that landed in a finalizer or another callback of C code.

    Python prints such a ``KeyboardInterrupt`` with its traceback and goes on as if nobody had asked.
    """
    before, main_thread = sys.unraisablehook, threading.main_thread().ident

    def again() -> None:
        if main_thread is not None:  # a real signal: it also wakes a thread that waits for a lock
            signal.pthread_kill(main_thread, signal.SIGINT)

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        timer = threading.Timer(AGAIN_S, again)  # raised in here, it would be lost once more
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
