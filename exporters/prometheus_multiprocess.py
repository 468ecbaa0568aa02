"""Many processes, one scrape: what ``PROMETHEUS_MULTIPROC_DIR`` changes.

The library then keeps every value in files in that folder, and a scrape adds up the files of all
processes. Custom collectors and exemplars do not work there, so pool pages are plain gauges that
the sink refreshes. In the library's own collector, one damaged file fails every scrape, and live
gauges of killed processes stay until somebody declares them dead; the collector here avoids both.
"""

import logging
import time
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, values
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from hicache_dbg.exporters.encoding import whole
from hicache_dbg.exporters.forking import unforked
from hicache_dbg.exporters.prometheus_asked import Asked
from hicache_dbg.exporters.prometheus_dead import is_claimed, put_together, undisturbed
from hicache_dbg.exporters.prometheus_merge import contained
from hicache_dbg.tracer.sink import PoolPages

__all__ = ["PoolPagesGauge", "SharedCollector", "is_multiprocess", "is_stale", "shared_registry"]

REFRESH_S = 1.0

# The library gives it no types.
_add_up: Callable[[list[str]], Iterable[Metric]] = MultiProcessCollector.merge

_log = logging.getLogger(__name__)


def is_multiprocess() -> bool:
    """Return whether the library keeps its values in files; it decides that once, on import."""
    return values.ValueClass is not values.MutexValue


class PoolPagesGauge(Asked[list[PoolPages]], Collector):
    """Pool pages as a plain gauge, refreshed as events pass because no scrape can read them."""

    def __init__(
        self, gauge: Gauge, failures: Counter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(failures, "pool_state")
        self._gauge = gauge
        self._clock = clock
        self._next = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples."""
        return self._gauge.describe()

    def collect(self) -> Iterable[Metric]:
        """Return this process's own samples."""
        return self._gauge.collect()

    def refresh(self) -> None:
        """Set the gauge from the readers, at most once a second."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + REFRESH_S
        for rank, states in self.answers():
            with unforked:
                for state in states:
                    names = map(whole, (state.pool, state.tier, state.state))
                    self._gauge.labels(*names, rank).set(state.pages)


class SharedCollector(Collector):
    """Adds up the files of all processes, except damaged ones and live gauges of dead ones.

    Counters and histograms of dead processes stay, in one merged file: what they counted happened.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged: set[Path] = set()
        self._said = False

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all processes, summed by label set."""
        self._put_together()
        with undisturbed(self._folder):
            return self._collected()

    def _put_together(self) -> None:
        try:
            put_together(self._folder)
        except Exception as error:  # noqa: BLE001 - unmerged files cost time only: go on scraping
            if not self._said:
                _log.warning("hicache-dbg: files of dead processes stay apart: %s", error)
            self._said = True

    def _collected(self) -> list[Metric]:
        known = contained(self._folder)
        every = sorted(self._folder.glob("*.db"))
        files = [path for path in every if path not in known and not is_stale(path)]
        try:
            return _merge(files)
        except Exception:  # noqa: BLE001 - a damaged file raises whatever its bytes lead to
            return _merge([path for path in files if self._is_whole(path)])

    def _is_whole(self, path: Path) -> bool:
        try:
            _merge([path])
        except Exception as error:  # noqa: BLE001 - as above; said once a file
            if path not in self._damaged:
                self._damaged.add(path)
                _log.warning("hicache-dbg: %s is left out of scrapes, damaged: %s", path, error)
            return False
        return True


def shared_registry(folder: Path) -> CollectorRegistry:
    """Return a registry for scrapes that adds up all processes."""
    # Without this option a scrape that filters by name gets nothing; older versions lack it.
    known = "support_collectors_without_names" in signature(CollectorRegistry).parameters
    options: dict[str, Any] = {"support_collectors_without_names": True} if known else {}
    registry = CollectorRegistry(**options)
    registry.register(SharedCollector(folder))
    return registry


def _merge(files: list[Path]) -> list[Metric]:
    return list(_add_up([str(path) for path in files]))


def is_stale(path: Path) -> bool:
    """Return whether a file holds live gauges of a process that is gone.

    The process's claim decides if it made one, because its pid means nothing in another container.
    """
    if not path.name.startswith("gauge_live"):
        return False
    pid = path.stem.rpartition("_")[2]
    claimed = is_claimed(path.parent, pid)
    if claimed is not None:
        return not claimed
    try:
        # Read bytes: a process name may hold anything.
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    # A zombie: killed, but not yet reaped by its parent.
    return state == b"Z"
