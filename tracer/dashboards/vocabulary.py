"""Collect which metrics exist and which labels each has, from the exporters themselves.

A private sink counts one event of each kind into a private registry; a scrape of that registry is
the vocabulary. A metric that was renamed in the exporter is therefore unknown here.
"""

from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from hicache_dbg.exporters.nvml import OK, READINGS, Gpu, Nvml
from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.prometheus_gpu import GpuCollector
from hicache_dbg.exporters.prometheus_multiprocess import is_multiprocess
from hicache_dbg.tracer.events import (
    ComponentInfo,
    EndInfo,
    Health,
    MirrorInfo,
    Started,
    Tier,
)
from hicache_dbg.tracer.sink import LookedUp, PoolPages

__all__ = ["TARGET_LABELS", "OneGpu", "VocabularyError", "vocabulary"]

#: The labels that Prometheus itself adds to every series of a target.
TARGET_LABELS = frozenset({"job", "instance"})
#: Prometheus's own series about a target.
TARGET_METRICS: tuple[str, ...] = ("up",)


#: The readings that have one value per label; every other reading has a single unlabelled value.
_GPU_LABELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "memory_bytes": ("used", "free", "total"),
        "pcie_bytes_per_second": ("sent", "received"),
        "pcie_link": ("generation", "generation_most", "width", "width_most"),
        "ecc_errors": ("corrected", "uncorrected"),
        "remapped_rows": ("corrected", "uncorrected", "pending", "failed"),
        "retired_pages": ("single_bit", "double_bit"),
        "slow_clocks": ("hw_slowdown", "hw_thermal", "sw_power_cap"),
    }
)


class VocabularyError(Exception):
    """The exporters can't be queried in this process."""


class OneGpu(Nvml):
    """A fake GPU that supports every reading, for machines without one; all readings are 0."""

    def __init__(self) -> None:
        super().__init__(frozenset())
        self.state = OK

    def read(self) -> list[Gpu]:
        """Return one GPU with every reading at 0 under each of its labels."""
        return [
            Gpu(
                index=0,
                uuid="GPU-0",
                name="none",
                bus_id="0",
                values={
                    reading.name: dict.fromkeys(_GPU_LABELS.get(reading.name, ("",)), 0.0)
                    for reading in READINGS
                },
                states={reading.name: OK for reading in READINGS},
            )
        ]


def vocabulary() -> Mapping[str, frozenset[str]]:
    """Return the labels of each metric, by metric name, as a scrape shows them.

    Raises:
        VocabularyError: ``PROMETHEUS_MULTIPROC_DIR`` is set, so the probe events would be counted
            into the files of serving processes.
    """
    if is_multiprocess():
        raise VocabularyError(
            "PROMETHEUS_MULTIPROC_DIR is set, and asking the exporters would count into its files: unset it"
        )
    registry = CollectorRegistry()
    pages = PoolPages(pool="p", tier="host", state="used", pages=1)
    asked = LookedUp(tier="host", end="hit", pages=1)
    sink = PrometheusSink(registry, pool_state=lambda: [pages, asked])
    sink.emit([_started(), Health(time_ns=0, errors={"probe": 1})])
    gpus = GpuCollector(OneGpu())
    registry.register(gpus)
    names: dict[str, frozenset[str]] = dict.fromkeys(TARGET_METRICS, TARGET_LABELS)
    for family in registry.collect():
        for sample in family.samples:
            names[sample.name] = TARGET_LABELS.union(sample.labels)
    gpus.close()
    sink.close()
    return names


def _started() -> Started:
    """Return the start event of a rank with one mirror.

    The sink creates all series of a pool when it sees one.
    """
    part = ComponentInfo(name="c", dtype="uint8", slot_bytes=1, page_bytes=1, pages=1, layers=1)
    device, host = (
        EndInfo(tier=tier, cls="C", layout="l", device="d", slots_per_page=1, components=(part,))
        for tier in (Tier.DEVICE, Tier.HOST)
    )
    mirror = MirrorInfo(
        pool="p", index_unit="page", slot_page=1, tokens_per_page=1, device=device, host=host
    )
    return Started(time_ns=0, system="s", version="0", checksum="off", mirrors=(mirror,))
