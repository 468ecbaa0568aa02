"""A circuit breaker: stop asking a store after consecutive failures, and retry after a cooldown."""

import time
from collections.abc import Callable
from threading import Lock

__all__ = ["COOLDOWN_S", "Breaker"]

LIMIT = 3
COOLDOWN_S = 5.0


class Breaker:
    """Opens after ``limit`` consecutive failures, then lets one call through per ``cooldown_s`` seconds."""

    def __init__(
        self,
        limit: int = LIMIT,
        cooldown_s: float = COOLDOWN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._failures = 0
        self._again_at = 0.0
        self._lock = Lock()

    @property
    def open(self) -> bool:
        """Whether the store is currently left alone."""
        return self._failures >= self._limit and self._clock() < self._again_at

    def allows(self) -> bool:
        """Return whether the store may be asked now; after each cooldown, one caller may try."""
        with self._lock:
            if self._failures < self._limit:
                return True
            if self._clock() < self._again_at:
                return False
            self._again_at = self._clock() + self._cooldown_s
            return True

    def report(self, *, good: bool) -> bool:
        """Record the outcome of a call; return True if this failure opens the breaker."""
        with self._lock:
            if good:
                self._failures = 0
                return False
            self._failures += 1
            self._again_at = self._clock() + self._cooldown_s
            return self._failures == self._limit
