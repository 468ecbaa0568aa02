"""When not to ask a store any more: after failures in a row, until it had time to come back."""

import time
from collections.abc import Callable
from threading import Lock

__all__ = ["Breaker"]

LIMIT = 3
COOLDOWN_S = 5.0


class Breaker:
    """Opens after ``limit`` failures in a row, and lets one through every ``cooldown_s`` seconds."""

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
        """Whether nothing is asked at the moment."""
        return self._failures >= self._limit and self._clock() < self._again_at

    def allows(self) -> bool:
        """Whether the store may be asked now; after the cooldown one caller in turn may try."""
        with self._lock:
            if self._failures < self._limit:
                return True
            if self._clock() < self._again_at:
                return False
            self._again_at = self._clock() + self._cooldown_s
            return True

    def report(self, *, good: bool) -> bool:
        """Note how it went; True where this failure opens the breaker."""
        with self._lock:
            if good:
                self._failures = 0
                return False
            self._failures += 1
            self._again_at = self._clock() + self._cooldown_s
            return self._failures == self._limit
