"""The GPUs' own counters as Prometheus metrics, read at scrape time.

A reading that the GPU does not know, or that is not permitted, is missing from the scrape and
reported by ``hicache_dbg_gpu_reading_state``: "no data" is not "no errors".
"""

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hicache_dbg.exporters.nvml import READINGS, Gpu, Nvml, XidWatch

__all__ = ["GpuCollector"]

FRESH_S = 1.0

_Family = CounterMetricFamily | GaugeMetricFamily


class GpuCollector(Collector):
    """Collects the readings of the GPUs that ``ranks`` names, or of all.

    Args:
        nvml: reads the GPUs.
        ranks: the rank on each GPU by its ``GPU-...`` id; without it the rank label is empty.
        clock: returns seconds; two scrapes within a second share one reading.
    """

    def __init__(
        self,
        nvml: Nvml,
        ranks: Mapping[str, int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._ranks = ranks or {}
        self._clock = clock
        self._xids: XidWatch = nvml.xids()
        self._gpus: list[Gpu] = []
        self._fresh_until = float("-inf")

    def close(self) -> None:
        """Stop watching for Xid errors."""
        self._xids.close()

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples."""
        return self._families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the families with one sample for each GPU and label."""
        if self._clock() >= self._fresh_until:
            self._gpus = self._nvml.read()
            self._fresh_until = self._clock() + FRESH_S
        families = self._families()
        families["nvml_state"].add_metric([self._nvml.state], 1)
        for gpu in self._gpus:
            self._add(families, gpu)
        return families.values()

    def _add(self, families: dict[str, _Family], gpu: Gpu) -> None:
        who = [str(gpu.index), str(self._ranks.get(gpu.uuid, ""))]
        families["gpu_info"].add_metric([*who, gpu.uuid, gpu.name, gpu.bus_id], 1)
        for reading in READINGS:
            for label, value in gpu.values.get(reading.name, {}).items():
                labels = [*who, label] if reading.label else who
                families[f"gpu_{reading.name}"].add_metric(labels, value)
        for name, state in {**gpu.states, "xids": self._xids.state}.items():
            families["gpu_reading_state"].add_metric([*who, name, state], 1)
        xids = self._xids.seen(gpu.index)
        families["gpu_xid_errors"].add_metric(who, xids.count)
        families["gpu_last_xid"].add_metric(who, xids.last)

    def _families(self) -> dict[str, _Family]:
        who = ["gpu", "rank"]
        families: dict[str, _Family] = {
            "nvml_state": _gauge("nvml_state", "1 for how NVML answers", ["state"]),
            "gpu_info": _gauge("gpu_info", "Which GPUs there are", [*who, "uuid", "model", "bus"]),
            "gpu_reading_state": _gauge(
                "gpu_reading_state", "1 for how a reading went", [*who, "reading", "state"]
            ),
            "gpu_xid_errors": _counter("gpu_xid_errors", "Xid errors since the start", who),
            "gpu_last_xid": _gauge("gpu_last_xid", "The latest Xid, 0 if there was none", who),
        }
        for reading in READINGS:
            labels = [*who, reading.label] if reading.label else who
            make = _counter if reading.total else _gauge
            families[f"gpu_{reading.name}"] = make(f"gpu_{reading.name}", reading.meaning, labels)
        return families


def _gauge(name: str, meaning: str, labels: list[str]) -> _Family:
    return GaugeMetricFamily(f"hicache_dbg_{name}", meaning, labels=labels)


def _counter(name: str, meaning: str, labels: list[str]) -> _Family:
    return CounterMetricFamily(f"hicache_dbg_{name}", meaning, labels=labels)
