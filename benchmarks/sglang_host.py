# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
# ruff: noqa: E402 - how large pools are is said before what builds them is imported
"""What we add to the thread that submits SGLang's operations, without a GPU.

    cd tests/sglang
    PYTHONPATH=../../.venvs/sglang-stubs:../../.venvs/sglang-0.5.23 ../../.venvs/sglang/bin/python \
        ../../benchmarks/sglang_host.py [--calls]

The controller or the engine is the release's own, over its own pool of 61 layers; its copies do nothing, and
the driver takes our calls and does nothing. From 0.5.18 on an operation is the engine's, and a queued one the
controller's that calls it. Its request is known, as a server's is. Each operation comes cold: before it, 8 MB are
written and other Python runs, as a scheduler's loop does between two of them. Times are attached less detached, in
many short turns, with and without the compiled helper (see ``sglang_gpu/segments.py``); ``--calls`` lists every
Python function of ours that one operation runs.
"""

import argparse
import ctypes
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE.parent / "tests" / "sglang"), str(_HERE / "sglang_gpu")]

import released_base

LAYERS, SETS, FEW = 61, 32, 4
#: Operations in a turn: those behind a switch take longer, attached or not.
UNTIMED, TIMED = 3, 5
released_base.LAYERS = LAYERS
released_base.DEVICE_PAGES = released_base.HOST_PAGES = SETS * FEW

import pytest
import torch
from copy_stand_ins import STAND_INS
from released_base import ENGINE
from released_driving import LAYER_COUNT, controller, indices, operation
from released_lane import HostLane, HostMark, HostSlot
from released_rows import mla
from released_streams import Event, device_events
from segments import Added, Mode, Parts, Stamps, alternate

from hicache_dbg.tracer.attach.sglang.gpu import Slot
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool
from hicache_dbg.tracer.attach.sglang.start import trace
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.digest import launch
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Checksum, Gate, Native, Settings

_OURS = str(Path(trace.__code__.co_filename).parents[2])


def _no_driver(arguments: int) -> Callable[..., int]:
    """Return a C function that is called like the driver's, and returns 0."""
    call = ctypes.PyDLL(None).PyErr_CheckSignals
    call.argtypes = [ctypes.c_void_p] * arguments
    return cast("Callable[..., int]", call)


class Launches:
    """Launches of all layers of one component, whose arguments are packed as they are on a GPU."""

    rows, bases = LAYERS, 0

    def __init__(self) -> None:
        launch.__dict__["driver"] = lambda: SimpleNamespace(cuLaunchKernelEx=_no_driver(4))
        self.every = launch.PreparedLaunch(
            cast("Any", None), ctypes.c_void_p(), bytes(56 + 8 * 20), 20, (1, 64), 128
        )


class NoDevice(HostLane):  # type: ignore[misc]
    """Takes every call at once; digests are all 0."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_record, self.wait, self.query = map(_no_driver, (2, 3, 1))
        nothing: Any = _no_driver(0)
        self.addresses = (ctypes.cast(nothing, ctypes.c_void_p).value or 0,) * 4

    def mark(self, stream: int) -> Any:
        """Record a mark as on a GPU, always the same one."""
        self.record(HostMark.cuda_event, stream)
        return _MARK

    def slot(self, words: int) -> Slot:
        """Return a slot as on a GPU, reusing a free one."""
        slot = self.slots.pop() if self.slots else HostSlot(max(words, 4096))
        slot.parts, slot.words, slot.refused = [], 0, ""
        slot.streams |= {0, 1}  # nothing has to know of its use
        return cast("Slot", slot)


_MARK = HostMark()


class Rig:
    """One pool whose device end is taken for one on a GPU, and what moves it."""

    def __init__(self, native: Native) -> None:
        self.sink = MemorySink()
        settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, queue=1 << 16, native=native)
        self.attachment = trace(settings, sinks=[self.sink])
        self.setup = setup = mla("layer_first")
        _copy_nothing()
        observer = self.attachment.observer
        record = observer.registry.of(setup.pool)
        assert record is not None
        lane = NoDevice()
        whole: Any = tuple((name, Launches()) for name in record.mirror.device)
        known = DevicePool(record, lane, record.mirror.device, 73_728, whole)
        observer.devices.by_pool[id(setup.pool)] = known
        pages = torch.arange(SETS * FEW).split(FEW)
        self.ids = [indices(part.tolist(), setup.page) for part in pages]
        queued = _controller(setup)
        self._move = queued
        if ENGINE:
            self._move = _engine(setup) | {f"queued {kind}": run for kind, run in queued.items()}
        self.kinds = tuple(self._move)
        self.attachment.hooks.requests.nodes.keep(1, (Request("a"),))
        self.attachment.detach()

    def run(self, kind: str, number: int) -> None:
        """Operation ``number`` of its kind."""
        self._move[kind](self.ids[number % SETS])

    def settle(self) -> None:
        """Wait until everything is judged, and drop the events."""
        session = self.attachment.observer.session()
        assert session is None or session.bus.flush(30)
        self.sink.events.clear()


def _copy_nothing() -> None:
    """Make SGLang's CUDA functions return at once from now on."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.srt.mem_cache"):
            for function in STAND_INS:
                setattr(module, function, lambda **_: None)


def _engine(setup: Any) -> dict[str, Callable[[torch.Tensor], None]]:
    from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine

    engine, pools = L2TransferEngine("kernel"), (setup.pool, setup.pool_device)

    def load(ids: torch.Tensor) -> None:
        engine.submit_host_to_device([L2Transfer(*pools, ids, ids)], **{LAYER_COUNT: LAYERS})

    return {
        "backup": lambda ids: engine.submit_device_to_host([L2Transfer(*pools, ids, ids)]),
        "load": load,
    }


def _controller(setup: Any) -> dict[str, Callable[[torch.Tensor], None]]:
    over = setup.pool_device or SimpleNamespace(
        device="cpu", layer_num=LAYERS, register_layer_transfer_counter=lambda _: None
    )
    owner = controller(replace(setup, pool_device=over), "kernel")

    def backup(ids: torch.Tensor) -> None:
        owner.write_queue.append(operation(ids, ids))
        owner.start_writing()
        owner.ack_write_queue.pop()

    def load(ids: torch.Tensor) -> None:
        owner.load_queue.append(operation(ids, ids))
        owner.start_loading()
        owner.ack_load_queue.pop()

    return {"backup": backup, "load": load}


def calls(rig: Rig, kind: str) -> Counter[str]:
    """Python functions of ours that one operation runs on its thread, and how often."""
    seen: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_OURS):
            seen[f"{Path(code.co_filename).name}:{code.co_qualname}"] += 1

    rig.attachment.attach()
    for profile in (*[None] * 6, note):  # each of the controller's sets of events has had a load
        sys.setprofile(profile)
        try:
            rig.run(kind, 0)
        finally:
            sys.setprofile(None)
        rig.settle()
    rig.attachment.detach()
    return seen


class Chill:
    """What a scheduler does between two operations, for all the caches know."""

    def __init__(self) -> None:
        self._wide = torch.zeros(1 << 20, dtype=torch.int64)
        self._told = [{"name": f"page {n}", "ids": [n, n + 1]} for n in range(200)]

    def __call__(self) -> None:
        """Write 8 MB, and run Python and C that is nobody's of those measured."""
        self._wide.add_(1)
        json.loads(json.dumps(self._told))
        sorted(str(one) for one in self._told)


@contextmanager
def parked(on: bool) -> Iterator[None]:
    """Keep operations from being judged within the context, if ``on``."""
    ready = DeviceOp.ready
    if on:
        DeviceOp.ready = lambda _: False  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        DeviceOp.ready = ready  # type: ignore[method-assign]


@contextmanager
def attached(rig: Rig, kind: str) -> Iterator[None]:
    """Trace within the context; nothing is judged meanwhile."""
    rig.attachment.attach()
    rig.run(kind, 0)
    rig.settle()
    with parked(on=True):
        yield
    rig.settle()
    rig.attachment.detach()


def added(
    rigs: dict[str, Rig], kind: str, rounds: int, chill: Callable[[], None]
) -> tuple[dict[str, Added], float]:
    """Return what each rig adds to an operation, and the microseconds it takes without us."""
    stamps = Stamps()

    def measure(rig: Rig) -> list[Parts]:
        parts = []
        for number in range(UNTIMED + TIMED):
            chill()
            parts.append(stamps.run(partial(rig.run, kind, number))[0])
        return parts[UNTIMED:]

    modes: list[Mode] = []
    for rig in rigs.values():
        modes += [(partial(attached, rig, kind), partial(measure, rig))]
        modes += [(nullcontext, partial(measure, rig))]
    with stamps.placed():
        values = alternate(modes, rounds)
    more = {name: Added.of(*values[2 * at : 2 * at + 2]) for at, name in enumerate(rigs)}
    return more, Parts.middle(values[1]).us


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what we add to a submitting thread.")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch:
        device_events(patch)
        patch.setattr(Event, "cuda_event", 77, raising=False)
        rigs = {"Python": Rig(Native.OFF), "compiled": Rig(Native.ON)}
        kinds = rigs["compiled"].kinds
        for path, rig in rigs.items():
            for kind in kinds:
                seen = calls(rig, kind)
                print(f"{path}, {kind}: {seen.total()} calls of {len(seen)} functions of ours")
                for name, count in seen.items() if options.calls else ():
                    print(f"    {count:3} {name}")
        for state, chill in (("cold", Chill()), ("warm", lambda: None)):
            for kind in kinds:
                more, bare = added(rigs, kind, options.rounds, chill)
                print(f"{state} {kind} of {bare:.1f} us")
                for name, one in more.items():
                    print(f"    {name:8} {one}", flush=True)


if __name__ == "__main__":
    main()
