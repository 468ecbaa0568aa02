"""The tracer's own state, read at scrape time: what was lost a second ago is visible now."""

import time
from collections.abc import Callable, Iterable

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hicache_dbg.exporters.prometheus_asked import Asked

__all__ = ["SelfReader"]

REFRESH_S = 1.0


class SelfReader(Asked[None], Collector):
    """Updates the metrics of each rank before the other collectors are collected.

    It has no samples of its own: it is registered first, and its readers set counters and gauges
    that are collected after it. In multiprocess mode, where a scrape cannot call it, the sinks call
    :meth:`refresh` as events pass.
    """

    def __init__(self, failures: Counter, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(failures, "self_state")
        self._clock = clock
        self._next = 0.0

    def refresh(self) -> None:
        """Update, at most once a second."""
        if self._clock() >= self._next:
            self._next = self._clock() + REFRESH_S
            self._update()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: there are no own samples."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Bring everything up to date; return no samples of its own."""
        self._update()
        return ()

    def _update(self) -> None:
        for _ in self.answers():
            pass
