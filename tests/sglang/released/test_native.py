"""The compiled helper runs the usual operation as our Python does, and leaves every other one to it."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from released_base import LAYERS, Setup
from released_driving import backup, indices, load
from released_lane import beside
from released_rows import mha_of_sglang, mla
from released_streams import Event, device_events
from released_traced import Start, Traced

from hicache_dbg.tracer.attach.sglang import gpu, gpu_plans
from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.native import build
from hicache_dbg.tracer.events import Copied, Finding, Started
from hicache_dbg.tracer.settings import Checksum, Native

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give SGLang events that the driver knows."""
    device_events(monkeypatch)
    monkeypatch.setattr(Event, "cuda_event", property(id), raising=False)


class Python:
    """Notes which of the functions run that the Python wrappers need for each operation."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        for cls, name in ((DeviceCalls, "_tell"), (DeviceOp, "__init__"), (DeviceOp, "at_once")):
            patch.setattr(cls, name, self._noting(getattr(cls, name)))

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.ran.append(function.__name__)
            return function(*args, **kwargs)

        return noted


def _round_trip(run: Traced, setup: Setup, count: int = 1) -> None:
    host = indices(HOST, setup.page)
    for _ in range(count):
        backup(setup, host, indices(FROM, setup.page), "kernel")
        load(setup, host, indices(TO, setup.page), "kernel")


def _plain(event: Copied) -> dict[str, Any]:
    told = msgspec.structs.asdict(event)
    return {
        name: value
        for name, value in told.items()
        if name not in {"time_ns", "op_id", "duration_us"}
    }


def test_the_usual_operation_runs_none_of_our_python_but_the_push(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second one of its kind on: the first one makes the plan."""
    run = traced(checksum=Checksum.LOADS, native=Native.ON)
    setup = mha_of_sglang("layer_first")
    beside(run, setup, at_once=True)
    _round_trip(run, setup)
    assert run.sink.of(Copied)
    python = Python(monkeypatch)
    _round_trip(run, setup)
    assert python.ran == []
    assert run.sink.of(Copied)[-1].verified == 2 * LAYERS * len(HOST)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("build", [mla, mha_of_sglang])
def test_both_paths_tell_the_same(
    traced: Start,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[str], Setup],
    *,
    large: bool,
) -> None:
    """Events, launches and the driver's calls are equal."""
    if large:
        for module in (gpu, gpu_plans):
            for limit in ("IN_LINE_BYTES", "LARGE_BYTES"):
                monkeypatch.setattr(module, limit, 0)
    seen = []
    for native in (Native.OFF, Native.ON):
        run = traced(checksum=Checksum.LOADS, native=native)
        setup = build("layer_first")
        lane = beside(run, setup, at_once=True)
        _round_trip(run, setup, 3)
        events = [_plain(event) for event in run.sink.of(Copied)]
        known = run.attachment.observer.devices.by_pool[id(setup.pool)]
        launched = [vars(whole)["launched"] for _, whole in known.whole]
        streams = [stream for _, stream in lane.recorded]
        seen.append((events, launched, streams, len(lane.waited), lane.order.held))
        assert run.sink.of(Finding) == []
        assert lane.slots or lane.begun
        run.attachment.detach()
    assert seen[0] == seen[1]
    assert seen[0][0][-1]["verified"]


def test_the_helpers_own_time_is_in_the_health_line(traced: Start) -> None:
    """The cost of an operation is counted from its first of our instructions to its last."""
    run = traced(checksum=Checksum.LOADS, native=Native.ON)
    setup = mla("layer_first")
    beside(run, setup, at_once=True)
    _round_trip(run, setup)
    session = run.attachment.observer.session()
    assert session is not None
    before, began = session.probe.overhead_s, time.perf_counter()
    _round_trip(run, setup, 5)
    spent = time.perf_counter() - began
    assert 0 < session.probe.overhead_s - before < spent


def test_sglangs_functions_are_back_after_a_detach(traced: Start) -> None:
    """The very same objects; while attached, the wrappers are compiled ones."""
    run = traced(native=Native.ON)
    cls = type(mla("layer_first").pool)
    method = "backup_from_device_all_layer"
    wrapper = vars(cls)[method]
    original = wrapper.__wrapped__
    assert is_ours(wrapper)
    assert type(wrapper).__name__ == "Wrapper"
    run.attachment.detach()
    assert vars(cls)[method] is original
    assert not is_ours(original)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (build.Unavailable("no C compiler"), "no C compiler"),
        (PermissionError("no such luck"), "PermissionError: no such luck"),
    ],
)
def test_without_a_helper_the_start_up_line_says_why(
    traced: Start, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    """Operations run in Python then, and are traced alike."""

    def missing() -> None:
        raise error

    monkeypatch.setattr(build, "module", missing)
    run = traced(checksum=Checksum.LOADS, native=Native.ON)
    setup = mla("layer_first")
    beside(run, setup, at_once=True)
    _round_trip(run, setup)
    (started,) = run.sink.of(Started)
    assert f"compiled helper: {why}" in started.unrecognised
    assert run.sink.of(Copied)[-1].verified == LAYERS * len(HOST)
