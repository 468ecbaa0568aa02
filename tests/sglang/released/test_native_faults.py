"""What may go wrong around the compiled helper, and in Python alike."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from released_base import ENGINE
from released_stress import OURS, Interrupt, Outcome, Rig, Step, rigged
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.gpu_plans import Plan
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import OWNER_BROADCAST
from hicache_dbg.tracer.attach.sglang.native.helper import Helper
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.settings import Native

BOTH = pytest.mark.parametrize("native", [Native.OFF, Native.ON])
KINDS = pytest.mark.parametrize("kind", ["backup", "load"])


def _ready(rig: Rig) -> None:
    """Run each kind once: the first one makes its plan."""
    for kind in ("backup", "load"):
        rig.step(Step(kind), Outcome())
    assert rig.session.bus.flush()


def _plans(rig: Rig) -> list[Plan]:
    known = rig.run.attachment.observer.devices.by_pool[id(rig.setups[0].pool)]
    return list(known.plans.values())


def _is_over(rig: Rig) -> None:
    """Assert that nothing is left of any operation."""
    assert rig.session.bus.flush()
    observer = rig.run.attachment.observer
    assert observer.frames.current is None
    assert not observer.calls.running
    assert not observer.devices.history._open
    assert "load_to_device_per_layer" not in vars(rig.setups[0].pool)
    assert "load_to_device_per_layer_physical" not in vars(rig.setups[0].pool)


@pytest.mark.parametrize("form", ["", "queued"])
@KINDS
def test_no_python_of_ours_runs_in_the_usual_operation(
    traced: Start, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    """Through the engine and through a controller's queue, for requests that are known."""
    # where pools divide their layers, as in other tests of this process, a load is followed in Python
    monkeypatch.delitem(sys.modules, OWNER_BROADCAST[0], raising=False)
    ran: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            ran.append(frame.f_code.co_qualname)

    with rigged(traced) as rig:
        rig.run.attachment.hooks.requests.nodes.keep(1, (Request("a"),))
        for profile in (*[None] * 6, note):  # each set of events has had a load from here
            sys.setprofile(profile)
            try:
                rig.submit(Step(kind, form=form))
            finally:
                sys.setprofile(None)
            assert rig.session.bus.flush()
        assert ran == []
        event = rig.run.sink.of(Copied)[-1]
        assert event.op == kind
        assert event.requests == (("a",) if form or not ENGINE else ())


@KINDS
def test_nothing_can_interrupt_the_push(
    traced: Start, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The helper appends to the ring itself: a signal's handler would run in Python only."""

    def refused(*_: Any) -> bool:
        raise AssertionError

    with rigged(traced) as rig:
        _ready(rig)
        with monkeypatch.context() as patch:
            patch.setattr(Bus.push, "__code__", refused.__code__)
            rig.submit(Step(kind))
        _is_over(rig)
        assert rig.run.sink.of(Copied)[-1].op == kind


@BOTH
@KINDS
def test_an_interrupt_while_the_bus_is_told_of_a_copy_it_has_no_room_for(
    traced: Start, monkeypatch: pytest.MonkeyPatch, native: Native, kind: str
) -> None:
    """It reaches SGLang's caller when the operation has ended, and the copy counts as not followed."""

    def interrupted(*_: Any) -> bool:
        raise Interrupt

    with rigged(traced, native) as rig:
        _ready(rig)
        with monkeypatch.context() as patch:
            patch.setattr(rig.session.bus, "_capacity", 0)
            patch.setattr(Bus, "_append", interrupted)
            with pytest.raises(Interrupt):
                rig.submit(Step(kind))
        before = len(rig.run.sink.of(Copied))
        _is_over(rig)
        _ready(rig)
        assert len(rig.run.sink.of(Copied)) == before + 2


@BOTH
@KINDS
def test_an_interrupt_behind_the_push(
    traced: Start, monkeypatch: pytest.MonkeyPatch, native: Native, kind: str
) -> None:
    """The ring holds a copy that nobody follows: it is passed over, and accuses nobody."""

    def interrupting(push: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def pushed(op: Any) -> bool:
            push(op)
            raise Interrupt

        return pushed

    with rigged(traced, native) as rig:
        _ready(rig)
        with monkeypatch.context() as patch:
            for plan in _plans(rig):
                patch.setattr(plan, "push", interrupting(plan.push))
            with pytest.raises(Interrupt):
                rig.submit(Step(kind))
        _is_over(rig)
        _ready(rig)
        assert len(rig.run.sink.of(Copied)) == 4
        assert rig.run.sink.of(Finding) == []


@BOTH
@pytest.mark.parametrize("call", [1, 2])
@KINDS
def test_a_slot_that_a_refused_operation_may_still_write_is_not_used_again(
    traced: Start, internal_errors: list[str], native: Native, kind: str, call: int
) -> None:
    """Whichever of the driver's calls is refused: some may have been taken before."""
    with rigged(traced, native) as rig:
        _ready(rig)
        free = list(rig.lanes[0].slots)
        rig.step(Step(kind, trouble=f"refused{call}"), Outcome())
        _is_over(rig)
        assert [slot for slot in free if slot not in rig.lanes[0].slots] == free[-1:]
        assert rig.run.sink.of(Copied)[-1].skipped
        internal_errors.clear()  # the refused call


def test_no_thread_finds_half_a_plan(traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is found once it is compiled, and knows its books."""
    compile_, seen = Helper.compile, list[tuple[bool, bool]]()

    def noted(helper: Helper, plan: Plan) -> None:
        found = plan in plan.device_pool.plans.values()
        compile_(helper, plan)
        seen.append((found, hasattr(plan, "booked")))

    monkeypatch.setattr(Helper, "compile", noted)
    with rigged(traced) as rig:
        _ready(rig)
        assert len(_plans(rig)) == 2
    assert seen == [(False, True)] * 2


def _slowly(stream: Callable[[], int], slept_s: float) -> int:
    time.sleep(slept_s)
    return stream()


@pytest.mark.parametrize(
    ("native", "form"), [(Native.OFF, ""), (Native.ON, ""), (Native.ON, "int32")]
)
@KINDS
def test_what_a_copy_costs_before_sglangs_own_is_counted(
    traced: Start, native: Native, kind: str, form: str
) -> None:
    """In Python, in the helper, and where the helper begins an operation and Python ends it."""
    slept_s = 0.02
    with rigged(traced, native) as rig:
        _ready(rig)
        for plan in _plans(rig):
            plan.stream = partial(_slowly, plan.stream, slept_s)
        before, began = rig.session.probe.overhead_s, time.perf_counter()
        rig.submit(Step(kind, form=form))
        spent = time.perf_counter() - began
        assert slept_s <= rig.session.probe.overhead_s - before < spent
