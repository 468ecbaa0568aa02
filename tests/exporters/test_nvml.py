"""The GPUs' own counters: absent, refused, and real."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry

from hicache_dbg.exporters.nvml import READINGS, Nvml
from hicache_dbg.exporters.prometheus_gpu import GpuCollector


def has_gpu() -> bool:
    """Return whether NVML answers on this machine."""
    return Nvml().state == "ok"


class Driver:
    """A fake driver of two GPUs that answers what it is given and refuses the rest.

    These tests usually run without a GPU, and a real one cannot be made to refuse.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetName": lambda _: b"H200",
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=f"0000:0{gpu}:00.0"),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=gpu, free=7, total=7 + gpu),
            "nvmlDeviceGetPcieReplayCounter": lambda gpu: 40 + gpu,
            "nvmlDeviceGetRemappedRows": lambda _: (1, 2, False, True),
            "nvmlEventSetCreate": refuse(pynvml.NVML_ERROR_NO_PERMISSION),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith(("nvmlClocks", "nvmlEventType")):
            return getattr(pynvml, name)
        return self._answers.get(name, refuse(pynvml.NVML_ERROR_NOT_SUPPORTED))


def refuse(code: int) -> Any:
    """Fail a call as NVML does."""

    def call(*_arguments: object) -> None:
        raise pynvml.NVMLError(code)

    return call


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return one sample of a scrape."""
    return registry.get_sample_value(f"hicache_dbg_{name}", labels)


@pytest.fixture
def scraped(registry: CollectorRegistry) -> Iterator[CollectorRegistry]:
    """Return a scrape of the two GPUs, with ranks 5 and 6 on them."""
    collector = GpuCollector(Nvml(library=Driver()), {"GPU-0": 5, "GPU-1": 6})
    registry.register(collector)
    yield registry
    collector.close()


def test_readings_carry_the_gpu_and_its_rank(scraped: CollectorRegistry) -> None:
    """Each reading has the labels of its GPU and of the rank that runs there."""
    who = {"gpu": "1", "rank": "6"}
    assert value(scraped, "gpu_memory_bytes", state="used", **who) == 1
    assert value(scraped, "gpu_memory_bytes", state="total", **who) == 8
    assert value(scraped, "gpu_pcie_replays_total", **who) == 41
    assert value(scraped, "gpu_remapped_rows", cause="uncorrected", **who) == 2
    assert value(scraped, "gpu_remapped_rows", cause="failed", **who) == 1
    assert value(scraped, "gpu_xid_errors_total", **who) == 0
    info = {"uuid": "GPU-1", "model": "H200", "bus": "0000:01:00.0"}
    assert value(scraped, "gpu_info", **info, **who) == 1


def test_a_refused_reading_is_a_state_and_no_value(scraped: CollectorRegistry) -> None:
    """A reading that is not supported or not permitted shows as such, not as a false zero."""
    who = {"gpu": "0", "rank": "5"}
    assert value(scraped, "gpu_ecc_errors_total", type="corrected", **who) is None
    assert value(scraped, "gpu_reading_state", reading="ecc_errors", state="not_supported", **who)
    assert value(scraped, "gpu_reading_state", reading="xids", state="not_permitted", **who) == 1
    assert value(scraped, "gpu_reading_state", reading="memory_bytes", state="ok", **who) == 1


def test_a_library_that_fails_otherwise_does_not_break_the_scrape(
    registry: CollectorRegistry,
) -> None:
    """Another version of NVML's library may lack a call or answer in another form."""

    def lacking(_gpu: object) -> None:
        raise AttributeError("nvmlDeviceGetRemappedRows")

    driver = Driver(
        nvmlDeviceGetRemappedRows=lacking,
        nvmlDeviceGetMemoryInfo=lambda _: None,
        nvmlDeviceGetName=lambda _: b"H\xff00",
        nvmlDeviceGetPciInfo=lacking,
    )
    collector = GpuCollector(Nvml(library=driver))
    registry.register(collector)
    who = {"gpu": "0", "rank": ""}
    for reading in ("remapped_rows", "memory_bytes"):
        assert value(registry, "gpu_reading_state", reading=reading, state="failed", **who) == 1
    assert value(registry, "gpu_pcie_replays_total", **who) == 40
    info = {"uuid": "GPU-0", "model": "H\\xff00", "bus": ""}
    assert value(registry, "gpu_info", **info, **who) == 1
    collector.close()


def test_only_the_asked_gpus_are_read() -> None:
    """With ids given, other GPUs of the machine are not touched."""
    gpus = Nvml(frozenset({"GPU-1"}), library=Driver()).read()
    assert [gpu.index for gpu in gpus] == [1]


def test_two_scrapes_within_a_second_share_a_reading(registry: CollectorRegistry) -> None:
    """Reading the counters takes time, so a second scraper gets the cached values."""
    asked: list[int] = []

    def replays(gpu: int) -> int:
        asked.append(gpu)
        return 0

    driver = Driver(nvmlDeviceGetPcieReplayCounter=replays)
    now = [0.0]
    collector = GpuCollector(Nvml(library=driver), clock=lambda: now[0])
    registry.register(collector)
    for now[0] in (0.0, 0.5, 1.5):
        value(registry, "gpu_pcie_replays_total", gpu="0", rank="")
    collector.close()
    assert asked == [0, 1, 0, 1]


def test_xid_errors_are_counted_by_gpu(registry: CollectorRegistry) -> None:
    """The driver's Xid events increase the count of their GPU and name the latest."""
    events = [
        SimpleNamespace(device=1, eventData=63),
        SimpleNamespace(device=1, eventData=94),
    ]

    def wait(_set: object, _ms: int) -> SimpleNamespace:
        if not events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return events.pop(0)

    driver = Driver(
        nvmlEventSetCreate=object,
        nvmlDeviceRegisterEvents=lambda *_: None,
        nvmlEventSetWait_v2=wait,
        nvmlDeviceGetIndex=lambda device: device,
    )
    collector = GpuCollector(Nvml(library=driver))
    watching = collector._xids._thread
    assert watching is not None
    watching.join(10)
    registry.register(collector)
    assert value(registry, "gpu_xid_errors_total", gpu="1", rank="") == 2
    assert value(registry, "gpu_last_xid", gpu="1", rank="") == 94
    assert value(registry, "gpu_xid_errors_total", gpu="0", rank="") == 0
    assert value(registry, "gpu_reading_state", gpu="0", rank="", reading="xids", state="lost") == 1


def test_absent_nvml_is_a_state(registry: CollectorRegistry) -> None:
    """Without a driver the scrape works, and reports that NVML is absent."""
    nvml = Nvml(library=Driver(nvmlInit=refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    collector = GpuCollector(nvml)
    registry.register(collector)
    assert value(registry, "nvml_state", state="absent") == 1
    assert nvml.read() == []
    collector.close()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is loaded here")
def test_a_machine_without_a_driver_is_not_an_error() -> None:
    """The real library, where there is no GPU, gives a state and no readings."""
    nvml = Nvml()
    assert nvml.state == "absent"
    assert nvml.read() == []


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU that NVML answers for")
def test_a_real_gpu_answers(registry: CollectorRegistry) -> None:
    """A real GPU reports its memory, and every reading is a value or a known refusal."""
    nvml = Nvml()
    collector = GpuCollector(nvml)
    registry.register(collector)
    for gpu in nvml.read():
        memory = gpu.values["memory_bytes"]
        assert 0 < memory["used"] + memory["free"] <= memory["total"]
        for reading in READINGS:
            assert gpu.states[reading.name] in {"ok", "not_supported", "not_permitted"}
            assert (reading.name in gpu.values) == (gpu.states[reading.name] == "ok")
        who = {"gpu": str(gpu.index), "rank": ""}
        assert value(registry, "gpu_xid_errors_total", **who) == 0
    collector.close()
