"""The tracer never breaks the host: its own failures are caught, counted and shown."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["InternalErrors"]

_log = logging.getLogger("hicache_dbg")


class InternalErrors:
    """Counts failures of the tracer itself by place, and logs the first of each place.

    Use as ``with errors.at("digest"): ...``. The exception is swallowed unless ``reraise`` is set,
    as it is in our own tests: what production only counts must fail a test.
    """

    def __init__(self, *, reraise: bool = False) -> None:
        self.reraise = reraise
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def at(self, place: str, lost: Callable[[], None] | None = None) -> "_Guard":
        """Return a context in which an exception is counted under ``place`` and swallowed.

        ``lost`` is called if the body did not complete, for whatever reason.
        """
        return _Guard(self, place, lost)

    def record(self, place: str, error: BaseException) -> None:
        """Count ``error``; the first one of a place is logged with its cause."""
        with self._lock:
            self._counts[place] += 1
            first = self._counts[place] == 1
        if first:
            _log.warning(
                "hicache-dbg failed at %s: %s: %s (counted from now on, serving goes on)",
                place,
                type(error).__name__,
                error,
                exc_info=(_log.isEnabledFor(logging.DEBUG) and error) or None,
            )

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
        if not isinstance(error, Exception):
            return False
        self._errors.record(self._place, error)
        return not self._errors.reraise
