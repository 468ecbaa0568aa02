"""The tracer never breaks the host: its own failures are caught, counted and shown."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hicache_dbg.tracer.forks import after_fork
from hicache_dbg.tracer.words import failure

__all__ = ["InternalErrors"]

_log = logging.getLogger("hicache_dbg")


class InternalErrors:
    """Counts failures of the tracer itself by place, and logs the first of each place.

    Use as ``with errors.at("digest"): ...``. The exception is swallowed unless ``reraise`` is set,
    as it is in our own tests: what production only counts must fail a test.
    """

    def __init__(self, *, reraise: bool = False) -> None:
        self.reraise = reraise
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()  # a signal's handler may fail within it

    def at(self, place: str, lost: Callable[[], None] | None = None) -> "_Guard":
        """Return a context in which an exception is counted under ``place`` and swallowed.

        An interrupt (``KeyboardInterrupt`` and its like) is counted too, and goes on to the host.
        ``lost`` is called if the body did not complete, for whatever reason.
        """
        return _Guard(self, place, lost)

    def record(self, place: str, error: BaseException) -> None:
        """Count ``error``; the first one of a place is logged with its cause."""
        with self._lock:
            self._counts[place] += 1
            first = self._counts[place] == 1
        if first:
            with contextlib.suppress(Exception):  # the host's handlers and filters may raise
                _log.warning(
                    "hicache-dbg %s at %s: %s (counted from now on, serving goes on)",
                    "failed" if isinstance(error, Exception) else "was interrupted",
                    place,
                    failure(error),
                    exc_info=(_log.isEnabledFor(logging.DEBUG) and error) or None,
                )

    def swallows(self, place: str, error: BaseException) -> bool:
        """Count ``error``; return whether the host goes on as if it had not been raised."""
        self.record(place, error)
        return isinstance(error, Exception) and not self.reraise

    def counts(self) -> dict[str, int]:
        """Return the failures so far, by place."""
        with self._lock:
            return dict(self._counts)


class _Guard:
    __slots__ = ("_errors", "_lost", "_place")

    def __init__(self, errors: InternalErrors, place: str, lost: Callable[[], None] | None) -> None:
        self._errors = errors
        self._place = place
        self._lost = lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            return False
        if self._lost is not None:
            self._lost()
        return self._errors.swallows(self._place, error)
