"""The tracer's own state, read when a scrape asks: what was lost a second ago is seen now."""

import time
from collections.abc import Callable, Iterable

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["SelfReader"]

REFRESH_S = 1.0


class SelfReader(Collector):
    """Brings the metrics of each rank up to date before the other collectors are asked.

    It has no samples of its own: it is registered first, and what it calls sets counters and gauges
    that are collected after it. Where scrapes cannot ask (several processes, one scrape) the sinks
    call :meth:`refresh` as events pass.
    """

    def __init__(self, failures: Counter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._clock = clock
        self._next = 0.0
        self._updates: dict[int, Callable[[], None]] = {}

    def read(self, rank: int, update: Callable[[], None] | None) -> None:
        """Call ``update`` for the state of ``rank`` from now on; None: nobody."""
        if update is None:
            self._updates.pop(rank, None)
        else:
            self._updates[rank] = update

    def refresh(self) -> None:
        """Update at most once a second."""
        if self._clock() >= self._next:
            self._next = self._clock() + REFRESH_S
            self._update()

    def describe(self) -> Iterable[Metric]:
        """Nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Nothing, after everything is up to date."""
        self._update()
        return ()

    def _update(self) -> None:
        for rank, update in list(self._updates.items()):
            try:
                update()
            except Exception:  # noqa: BLE001 - the scrape stays whole, and the failure is counted
                self._failures.labels("self_state", str(rank)).inc()
