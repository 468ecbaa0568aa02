"""Signals that end the command: each unwinds it, and none gets lost."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Ending", "kept_interrupts"]

#: What a supervisor sends, and a terminal that closes. Python itself handles only an interrupt.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: How long after its loss an interrupt is sent again: the finalizer that it landed in is over by then.
AGAIN_S = 0.05


class Ending:
    """Which signal ends the command.

    The first one of ``SIGNALS`` raises ``KeyboardInterrupt`` in the main thread, so that whatever runs
    cleans up. Later ones are ignored: supervisors send several, and they must not cut the cleanup short.

    Attributes:
        over: The command has ended; nothing is left to be interrupted.
    """

    def __init__(self) -> None:
        self.signal = signal.SIGINT
        self.over = False
        self._lost = False

    @property
    def told(self) -> bool:
        """Whether one of ``SIGNALS`` has arrived."""
        return self.signal is not signal.SIGINT

    @property
    def code(self) -> int:
        """The exit code by which a shell knows a process that this signal ended."""
        return 128 + self.signal

    @property
    def word(self) -> str:
        """What happened, in a word."""
        words = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
        return words.get(self.signal, "interrupted")

    def on_signal(self, number: int, _frame: object) -> None:
        """Raise ``KeyboardInterrupt``, once, or again if that got lost."""
        if self.over or (self.told and not self._lost):
            return
        self.signal, self._lost = signal.Signals(number), False
        raise KeyboardInterrupt

    def again(self) -> None:
        """Send the signal once more. A real one also wakes a thread that waits for a lock."""
        self._lost = True
        main_thread = threading.main_thread().ident
        if main_thread is not None and not self.over:
            signal.pthread_kill(main_thread, self.signal)


@contextmanager
def kept_interrupts() -> Iterator[Ending]:
    """Have ``SIGNALS`` end the command as an interrupt does, and send a lost interrupt again.

    Python loses one that lands in a finalizer or another callback of C code: it prints it with its
    traceback and goes on as if nobody had asked.
    """
    ending, before = Ending(), sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        timer = threading.Timer(AGAIN_S, ending.again)  # raised in here, it would be lost once more
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
    try:
        with _handled(ending):
            yield ending
    finally:
        ending.over = True
        sys.unraisablehook = before


@contextmanager
def _handled(ending: Ending) -> Iterator[None]:
    """Handle ``SIGNALS``, except for those that are ignored or handled already (``nohup``)."""
    here = threading.current_thread() is threading.main_thread()
    free = [number for number in SIGNALS if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in free:
        signal.signal(number, ending.on_signal)
    try:
        yield
    finally:
        for number in free:
            signal.signal(number, signal.SIG_DFL)
