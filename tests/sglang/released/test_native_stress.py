"""The compiled helper does what the Python wrappers do: the same operations, failures and interrupts, in both."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import copy
import gc
import inspect
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from released_base import ENGINE
from released_stress import AMID, FORMS, THROUGHOUT, Outcome, Step, outcome, rigged
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.frames import Frame
from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.settings import Native

STEPS = st.builds(
    Step,
    kind=st.sampled_from(["backup", "load"]),
    pools=st.sampled_from([(0,), (0,), (1,), (0, 1), (1, 0), (0, 0)] if ENGINE else [(0,), (1,)]),
    pages=st.integers(1, 4),
    first=st.integers(0, 5),
    trouble=st.sampled_from(["", "", "", *AMID, *THROUGHOUT]),
    at=st.integers(0, 3),
    form=st.sampled_from(FORMS),
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=1, max_size=6))
@example(steps=[Step("backup"), Step("load")])
@example(
    steps=[Step("backup"), Step("backup", trouble="refused1"), Step("backup", trouble="refused2")]
)
@example(steps=[Step("load"), Step("load", trouble="detach", at=1), Step("load")])
@example(steps=[Step("backup", trouble="large", pages=4), Step("load", trouble="small")])
@example(
    steps=[
        Step("load", form="queued"),
        Step("load", form="queued", trouble="asked"),
        Step("load", form="queued", trouble="other events"),
        Step("load", form="queued", trouble="unfollowed"),
        Step("load", form="queued", trouble="raise", at=1),
        Step("load", form="queued"),
    ]
)
@example(
    steps=[
        Step("backup", form="queued", trouble="asked"),
        Step("backup", form="queued", trouble="odd nodes"),
        Step("load", form="queued", trouble="divided"),
        Step("load", form="queued", trouble="disabled"),
        Step("load", form="queued", trouble="detach", at=1),
        Step("load", form="queued"),
    ]
)
@example(steps=[Step("backup", trouble="unspeakable"), Step("load", trouble="interrupt", at=1)])
def test_every_sequence_ends_alike(
    traced: Start, internal_errors: list[str], steps: list[Step]
) -> None:
    """Events, findings, counted errors, driver calls, exceptions and what is left behind are the same."""
    plain, fast = (outcome(steps, traced, native) for native in (Native.OFF, Native.ON))
    for name in ("raised", "events", "findings", "errors", "driver", "left"):
        assert getattr(fast, name) == getattr(plain, name), name
    internal_errors.clear()  # compared above


#: One after another they take each way through the helper, and out of it.
ROUND = (
    *(
        Step("backup"),
        Step("load"),
        Step("backup", pools=(1,)),
        Step("load", pools=(1,), form="odd"),
    ),
    *(Step("backup", trouble="raise"), Step("load", trouble="raise", at=1)),
    *(Step("backup", trouble=f"refused{n}") for n in (1, 2, 3)),
    *(
        Step("load", trouble="interrupt"),
        Step("backup", trouble="full"),
        Step("load", trouble="graph"),
    ),
    *(Step("backup", trouble="disabled"), Step("load", form="named"), Step("backup", form="short")),
    *(Step("backup", form="int32"), Step("backup", form="strided"), Step("load", form="empty")),
    *(
        Step("backup", form="parameter"),
        Step("load", form="one there"),
        Step("load", form="halved there"),
    ),
    *(Step("backup", trouble="elsewhere"), Step("load", form="none here")),
    *(
        Step("load", trouble="asked", form="queued"),
        Step("load", trouble="other events", form="queued"),
        Step("load", trouble="raise", form="queued"),
        Step("backup", trouble="odd nodes", form="queued"),
        Step("load", trouble="unfollowed", form="queued"),
        Step("load", trouble="divided", form="queued"),
        Step("backup", trouble="nested"),
        Step("load", trouble="another"),
        Step("backup", form="unequal"),
    ),
)


def test_the_helper_runs_what_is_compared(traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first operation of each kind, which makes the plan."""
    ended: list[Frame] = []
    end = DeviceCalls.end

    def noted(calls: DeviceCalls, frame: Frame) -> None:
        ended.append(frame)
        end(calls, frame)

    monkeypatch.setattr(DeviceCalls, "end", noted)
    with rigged(traced) as rig:
        for step in (Step(kind, (pool,)) for pool in (0, 1) for kind in ("backup", "load") * 3):
            rig.step(step, Outcome())
        assert len(ended) == 4


@pytest.mark.parametrize("native", [Native.OFF, Native.ON])
def test_nothing_is_kept_of_an_operation(
    traced: Start, internal_errors: list[str], native: Native
) -> None:
    """However it ends: no reference to what lives longer, and none of its indices, frames or copies."""
    rounds = int(os.environ.get("HICACHE_DBG_STRESS", "10"))
    with rigged(traced, native) as rig:

        def run(count: int) -> list[int]:
            for _ in range(count):
                for step in ROUND:
                    rig.step(step, Outcome())
                rig.driver.log.clear()
                rig.session.bus.flush()
                rig.run.sink.events.clear()
                internal_errors.clear()
            gc.collect()
            plans = rig.plans()
            things = [*rig.setups, *rig.lanes, rig.session.probe, DeviceOp, Frame, torch.int64]
            things += [*plans, *(plan.all for plan in plans)]
            things += [own for setup in rig.setups for own in (setup.pool, setup.pool_device)]
            alive = [type(one) for one in gc.get_objects()]
            counts = [alive.count(kind) for kind in (DeviceOp, Frame)]
            return [*counts, *(sys.getrefcount(thing) for thing in things if thing is not None)]

        run(3)
        before = run(2)
        rig.given.clear()
        assert run(rounds) == before
        *ended, _, _ = rig.given  # the last copy is closed by the next one
        assert [ids() for ids in ended if ids() is not None] == []


@pytest.fixture
def brisk() -> Iterator[None]:
    """Let threads take turns every 0.1 ms.

    A torch call gives the interpreter's lock away, and beside a thread that never does it comes back an interval
    later: with the usual 5 ms a digest takes seconds.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("brisk")
def test_threads_that_submit_while_another_detaches(
    traced: Start, internal_errors: list[str]
) -> None:
    """Two threads back up and load disjoint pages while tracing goes on and off: nothing fails or is found."""
    with rigged(traced) as rig:
        failed: list[BaseException] = []
        stop = threading.Event()

        def submit(first: int, pool: int) -> None:
            try:
                for n in range(60):
                    for kind in ("backup", "load"):
                        rig.submit(Step(kind, pools=(pool,), pages=1, first=first + n % 2))
            except BaseException as error:  # noqa: BLE001 - shown below
                failed.append(error)

        def toggle() -> None:
            while not stop.is_set():
                rig.run.attachment.detach()
                rig.run.attachment.attach()

        threads = [threading.Thread(target=submit, args=(at, at // 3)) for at in (0, 3)]
        toggling = threading.Thread(target=toggle)
        for thread in (*threads, toggling):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        toggling.join()
        seen = rig.finish(Outcome())
        assert failed == []
        assert internal_errors == []
        assert seen.findings == []
        assert seen.left[:4] == [None, set(), set(), []]
        assert all(seen.left[5])
        assert sum(event["mismatched"] for event in seen.events) == 0


def test_a_wrapper_is_what_a_function_is(traced: Start) -> None:
    """To those who inspect, pickle, copy or override SGLang's methods."""
    with rigged(traced) as rig:
        pool = rig.setups[0].pool
        cls = next(c for c in type(pool).__mro__ if "load_to_device_per_layer" in vars(c))
        for name in ("load_to_device_per_layer", "backup_from_device_all_layer"):
            wrapper = vars(cls)[name]
            original = inspect.unwrap(wrapper)
            assert inspect.signature(wrapper) == inspect.signature(original)
            assert inspect.signature(getattr(pool, name)) == inspect.signature(
                original.__get__(pool)
            )
            for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
                assert getattr(wrapper, attribute) == getattr(original, attribute)
            assert pickle.loads(pickle.dumps(wrapper)) is wrapper  # noqa: S301 - dumped right here
            assert copy.copy(wrapper) is copy.deepcopy(wrapper) is wrapper
            assert getattr(cls, name) is wrapper
            assert getattr(pool, name) == wrapper.__get__(pool)
            assert hash(getattr(pool, name)) == hash(wrapper.__get__(pool))
            assert callable(wrapper)
            assert getattr(wrapper, "__isabstractmethod__", False) is False


def test_a_child_of_an_operation_goes_on(traced: Start) -> None:
    """Forked in the middle of an operation, a child ends it and runs more."""
    with rigged(traced) as rig:
        for kind in ("backup", "load"):
            rig.submit(Step(kind))
        children: list[int] = []

        def fork() -> None:
            if not children:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a process of several threads forks
                    children.append(os.fork())

        rig.amid = fork
        try:
            rig.submit(Step("backup"))
            rig.amid = lambda: None
            for kind in ("backup", "load"):
                rig.submit(Step(kind))
        finally:
            if children == [0]:
                os._exit(int(sys.exc_info()[0] is not None))
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
