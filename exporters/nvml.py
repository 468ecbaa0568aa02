"""What the GPUs report of themselves: memory, bus, error counters, and why clocks are low.

If a digest differs although nobody wrote, a bit has flipped, and these counters are shown beside
the finding. NVML may be absent, refuse a reading or not know it: each is a reported state, never an
exception.

Reference: https://docs.nvidia.com/deploy/nvml-api/
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pynvml

__all__ = ["READINGS", "Gpu", "Nvml", "Reading", "XidWatch"]

OK = "ok"

_STATES: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "absent",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "absent",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not_supported",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "not_supported",
        pynvml.NVML_ERROR_NO_PERMISSION: "not_permitted",
        pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    }
)

_SLOW_CLOCKS: Mapping[str, int] = MappingProxyType(
    {
        "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
        "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
        "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
        "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    }
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing to ask of a GPU: values by a label that tells them apart.

    ``total`` marks a count that only grows until the driver is reloaded.
    """

    name: str
    label: str
    meaning: str
    read: Callable[[Any, Any], Mapping[str, float]]
    total: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's readings, and the state of each reading."""

    index: int
    uuid: str
    name: str
    bus_id: str
    values: Mapping[str, Mapping[str, float]]
    states: Mapping[str, str]


def state_of(error: BaseException) -> str:
    """Return a word for a failure of NVML."""
    return _STATES.get(getattr(error, "value", -1), "failed")


def _memory(nvml: Any, gpu: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"used": memory.used, "free": memory.free, "total": memory.total}


def _throughput(nvml: Any, gpu: Any) -> dict[str, float]:
    # NVML counts kB over 20 ms, and the call takes that long.
    counters = {"sent": nvml.NVML_PCIE_UTIL_TX_BYTES, "received": nvml.NVML_PCIE_UTIL_RX_BYTES}
    return {
        way: 1000 * nvml.nvmlDeviceGetPcieThroughput(gpu, counter)
        for way, counter in counters.items()
    }


def _link(nvml: Any, gpu: Any) -> dict[str, float]:
    return {
        "generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
        "generation_most": nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "width_most": nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    }


def _ecc(nvml: Any, gpu: Any) -> dict[str, float]:
    kinds = {
        "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    return {
        kind: nvml.nvmlDeviceGetTotalEccErrors(gpu, code, nvml.NVML_VOLATILE_ECC)
        for kind, code in kinds.items()
    }


def _remapped(nvml: Any, gpu: Any) -> dict[str, float]:
    names = ("corrected", "uncorrected", "pending", "failed")
    return {
        name: float(value)
        for name, value in zip(names, nvml.nvmlDeviceGetRemappedRows(gpu), strict=True)
    }


def _retired(nvml: Any, gpu: Any) -> dict[str, float]:
    causes = {
        "single_bit": nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        "double_bit": nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    }
    return {cause: len(nvml.nvmlDeviceGetRetiredPages(gpu, code)) for cause, code in causes.items()}


def _slow_clocks(nvml: Any, gpu: Any) -> dict[str, float]:
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return {name: float(bool(reasons & bit)) for name, bit in _SLOW_CLOCKS.items()}


def _replays(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"": nvml.nvmlDeviceGetPcieReplayCounter(gpu)}


READINGS: tuple[Reading, ...] = (
    Reading("memory_bytes", "state", "GPU memory by state", _memory),
    Reading("pcie_bytes_per_second", "direction", "PCIe throughput over 20 ms", _throughput),
    Reading("pcie_link", "attribute", "PCIe generation and lanes, in use and at most", _link),
    Reading("pcie_replays", "", "PCIe transfers that were repeated", _replays, total=True),
    Reading("ecc_errors", "type", "ECC errors since the driver was loaded", _ecc, total=True),
    Reading("remapped_rows", "cause", "Memory rows replaced by spare ones", _remapped),
    Reading("retired_pages", "cause", "Memory pages taken out of use", _retired),
    Reading("slow_clocks", "reason", "1 while clocks are held down for the reason", _slow_clocks),
)


class Nvml:
    """Reads every reading of every GPU, or of those in ``uuids``.

    Args:
        uuids: which GPUs, by their ``GPU-...`` id; all by default.
        library: the library to call, with the names of ``pynvml``.
    """

    def __init__(self, uuids: frozenset[str] | None = None, *, library: Any = pynvml) -> None:
        self._nvml = library
        self._handles: list[tuple[int, Any]] = []
        self.state = OK
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            self.state = state_of(error)
            return
        try:
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                if uuids is None or library.nvmlDeviceGetUUID(handle) in uuids:
                    self._handles.append((index, handle))
        except library.NVMLError as error:
            self.state = state_of(error)

    def read(self) -> list[Gpu]:
        """Return every reading of every GPU; takes 40 ms per GPU, to measure bus throughput."""
        return [self._read(index, handle) for index, handle in self._handles]

    def xids(self) -> "XidWatch":
        """Start watching for Xid errors; the caller must close the watch."""
        return XidWatch(self._nvml, self._handles)

    def _read(self, index: int, handle: Any) -> Gpu:
        values: dict[str, Mapping[str, float]] = {}
        states: dict[str, str] = {}
        for reading in READINGS:
            try:
                values[reading.name] = reading.read(self._nvml, handle)
                states[reading.name] = OK
            except Exception as error:  # noqa: BLE001 - another version's library: the host's scrape goes on
                states[reading.name] = state_of(error)
        return Gpu(
            index=index,
            uuid=self._text(self._nvml.nvmlDeviceGetUUID, handle),
            name=self._text(self._nvml.nvmlDeviceGetName, handle),
            bus_id=self._text(lambda gpu: self._nvml.nvmlDeviceGetPciInfo(gpu).busId, handle),
            values=values,
            states=states,
        )

    def _text(self, ask: Callable[[Any], str | bytes], handle: Any) -> str:
        try:
            text = ask(handle)
        except Exception:  # noqa: BLE001 - as above
            return ""
        return text.decode(errors="backslashreplace") if isinstance(text, bytes) else text


@dataclass(frozen=True, slots=True)
class Xids:
    """Xid errors of one GPU since the watch began."""

    count: int = 0
    last: int = 0


@dataclass
class XidWatch:
    """Counts Xid errors as the driver reports them, on its own thread.

    An Xid is the driver's number for a fault of GPU, bus or program:
    https://docs.nvidia.com/deploy/xid-errors/
    """

    library: Any
    handles: list[tuple[int, Any]]
    state: str = OK
    _counts: Counter[int] = field(default_factory=Counter)
    _last: dict[int, int] = field(default_factory=dict)

    WAIT_MS = 500

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        nvml = self.library
        try:
            self._events = nvml.nvmlEventSetCreate()
            for _, handle in self.handles:
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._events
                )
        except nvml.NVMLError as error:
            self.state = state_of(error)
            return
        self._thread = threading.Thread(target=self._run, name="hicache-dbg-xid", daemon=True)
        self._thread.start()

    def seen(self, index: int) -> Xids:
        """Return the errors of the GPU at ``index`` so far."""
        return Xids(count=self._counts[index], last=self._last.get(index, 0))

    def close(self) -> None:
        """Stop watching, within a second."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * self.WAIT_MS / 1000)

    def _run(self) -> None:
        nvml = self.library
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, self.WAIT_MS)
                index = nvml.nvmlDeviceGetIndex(event.device)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                self.state = state_of(error)
                return
            self._counts[index] += 1
            self._last[index] = event.eventData
