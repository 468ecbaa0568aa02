# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Operations of every form in which anything goes wrong, beside a driver on the CPU; and what came of them."""

import contextlib
import gc
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import released_streams
import torch
from copy_stand_ins import STAND_INS
from released_base import DEVICE_PAGES, ENGINE, HOST_PAGES, LAYERS, Setup
from released_driver import Driver, DriverLane, beside
from released_driving import LAYER_COUNT, controller, indices, operation
from released_rows import mha, mla
from released_traced import Start, Traced
from sglang.srt.managers.cache_controller import CacheOperation

from hicache_dbg.tracer.attach.sglang import attachment, gpu, gpu_plans
from hicache_dbg.tracer.attach.sglang.gpu_plans import Plan
from hicache_dbg.tracer.attach.sglang.layer_split_broadcasts import OWNER_BROADCAST
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.events import Copied, Finding
from hicache_dbg.tracer.settings import Checksum, Native

__all__ = [
    "AMID",
    "DEVICE_SHAPES",
    "FORMS",
    "HOST_SHAPES",
    "OURS",
    "SHAPES",
    "THROUGHOUT",
    "Outcome",
    "Rig",
    "Step",
    "outcome",
    "rigged",
]

#: Where our wrappers are.
OURS = str(Path(attachment.__file__).parents[1])
BUILDS: tuple[Callable[[str], Setup], ...] = (mla, mha)


class HostError(Exception):
    """An exception of SGLang's own."""


class UnspeakableError(Exception):
    """An exception that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("do not ask")


class Interrupt(BaseException):
    """What a signal handler raises."""


@dataclass(frozen=True)
class Step:
    """One operation, and what goes wrong meanwhile.

    ``pools`` are moved in this order; ``pages`` of each. ``trouble`` strikes at the ``at``-th copy.
    """

    kind: str = "backup"
    pools: tuple[int, ...] = (0,)
    pages: int = 2
    first: int = 0
    trouble: str = ""
    at: int = 0
    form: str = ""


#: What may happen in the middle of SGLang's copies.
AMID = (
    *("raise", "unspeakable", "interrupt", "exit"),
    *("detach", "nested", "another", "collect", "graph"),
)
#: What holds for the whole operation.
THROUGHOUT = (
    *("full", "disabled", "untimed", "small", "large", "refused1", "refused2", "refused3"),
    *("asked", "odd nodes", "divided", "other events", "unfollowed", "elsewhere", "captured"),
)


class Halved(torch.Tensor):
    """A tensor of a class that has its own word on how many elements it has."""

    def numel(self) -> int:
        """Return half of them."""
        return super().numel() // 2


Shape = Callable[[torch.Tensor], Any]
#: Forms of indices: of both ends, and of the device's alone.
SHAPES: dict[str, Shape] = {"empty": lambda ids: ids[:0], "odd": lambda ids: ids[:-1]}
DEVICE_SHAPES: dict[str, Shape] = {
    "unequal": lambda ids: ids[: len(ids) // 2],
    "strided": lambda ids: torch.stack([ids, ids], 1)[:, 0],
    "int32": lambda ids: ids.int(),
    "deep": lambda ids: ids.view(1, -1),
    "backwards": lambda ids: ids.flip(0),
    "amid": lambda ids: torch.cat([ids, ids])[len(ids) :],
    "none here": lambda ids: ids[:0],
    "parameter": lambda ids: torch.nn.Parameter(ids, requires_grad=False),
    "halved": lambda ids: ids.as_subclass(Halved),
    "array": lambda ids: ids.numpy(),
    "sparse": lambda ids: ids.to_sparse(),
}
#: Of the host's alone.
HOST_SHAPES: dict[str, Shape] = {
    "none there": lambda ids: ids[:0],
    "one there": lambda ids: ids[:1],
    "int32 there": lambda ids: ids.int(),
    "deep there": lambda ids: ids.view(1, -1),
    "halved there": lambda ids: ids.as_subclass(Halved),
    "array there": lambda ids: ids.numpy(),
}
#: How a call is made, and its indices. Versions before the engine have nothing but queues.
FORMS = ("", "", "queued", "named", "alone", "short", *SHAPES, *DEVICE_SHAPES, *HOST_SHAPES)


@dataclass
class Outcome:
    """What there is to see of a sequence."""

    raised: list[str] = field(default_factory=list)
    driver: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    findings: list[Any] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    left: list[Any] = field(default_factory=list)


class Rig:
    """Two pools beside a driver, and SGLang's own engine or controllers."""

    def __init__(self, run: Traced, driver: Driver, patch: pytest.MonkeyPatch) -> None:
        self.run, self.driver = run, driver
        self.setups = [build("layer_first") for build in BUILDS]
        self.lanes: list[DriverLane] = [beside(run, setup, driver) for setup in self.setups]
        self.fields = [set(vars(setup.pool)) for setup in self.setups]
        self.amid: Callable[[], None] = lambda: None
        #: The indices given so far.
        self.given: list[weakref.ref[torch.Tensor]] = []
        for name, module_ in list(sys.modules.items()):
            if name.startswith("sglang.srt.mem_cache"):
                for function in STAND_INS:
                    if hasattr(module_, function):
                        patch.setattr(module_, function, self._trapped(function))
        if ENGINE:
            from sglang.srt.mem_cache.l2_transfer import L2TransferEngine

            self.engine = L2TransferEngine("kernel")
        self.controllers = [controller(_queued(setup), "kernel") for setup in self.setups]
        session = run.attachment.observer.session()
        assert session is not None
        self.session = session

    def _trapped(self, function: str) -> Callable[..., None]:
        def copy(**given: Any) -> None:
            STAND_INS[function](**given)
            self.amid()

        return copy

    def ids(self, step: Step, pool: int, *, host: bool) -> Any:
        """Return the indices of one end."""
        found = self._ids(step, pool, host=host)
        self.given.append(weakref.ref(found))
        return found

    def _ids(self, step: Step, pool: int, *, host: bool) -> Any:
        most = HOST_PAGES if host else DEVICE_PAGES
        pages = [(step.first + (2 if host else 1) * n) % most for n in range(step.pages)]
        found = indices(pages, self.setups[pool].page)
        shape = SHAPES.get(step.form) or (HOST_SHAPES if host else DEVICE_SHAPES).get(step.form)
        return shape(found) if shape is not None else found

    def submit(self, step: Step) -> None:
        """Run one operation as SGLang does."""
        if step.form in {"alone", "named", "short"}:
            self._directly(step)
        elif ENGINE and step.form != "queued":
            from sglang.srt.mem_cache.l2_transfer import L2Transfer

            moves = [
                L2Transfer(
                    *(self.setups[p].pool, self.setups[p].pool_device),
                    *(self.ids(step, p, host=True), self.ids(step, p, host=False)),
                )
                for p in step.pools
            ]
            if step.kind == "backup":
                self.engine.submit_device_to_host(moves)
            else:
                self.engine.submit_host_to_device(moves, **{LAYER_COUNT: LAYERS})
        else:
            self._controlled(step)

    def _controlled(self, step: Step) -> None:
        pool = step.pools[0]
        owner = self.controllers[pool]
        ids = [self.ids(step, pool, host=host) for host in (True, False)]
        queue = owner.write_queue if step.kind == "backup" else owner.load_queue
        queued = operation(*ids)
        if step.trouble == "odd nodes":
            queued.node_ids = 1, 2
        queue.append(queued)
        try:
            (owner.start_writing if step.kind == "backup" else owner.start_loading)()
        finally:
            queue.clear()

    def _directly(self, step: Step) -> None:
        """Call the pool itself, as HiSparse does: positionally, by name, or with too little."""
        pool, ids = (
            self.setups[step.pools[0]].pool,
            [self.ids(step, step.pools[0], host=host) for host in (True, False)],
        )
        over = self.setups[step.pools[0]].pool_device
        named = {"host_indices": ids[0], "device_indices": ids[1], "io_backend": "kernel"}
        if step.form == "short":
            method = (
                "backup_from_device_all_layer"
                if step.kind == "backup"
                else "load_to_device_per_layer"
            )
            getattr(pool, method)(over)
        elif step.kind == "backup" and step.form == "named":
            pool.backup_from_device_all_layer(device_pool=over, **named)
        elif step.kind == "backup":
            pool.backup_from_device_all_layer(over, *ids, "kernel")
        elif step.form == "named":
            for layer in range(LAYERS):
                pool.load_to_device_per_layer(over, layer_id=layer, **named)
        else:
            for layer in range(LAYERS):
                pool.load_to_device_per_layer(over, *ids, layer, "kernel")

    def step(self, step: Step, seen: Outcome) -> None:
        """Run one step with its trouble, and note what came of it."""
        count = 0

        def amid() -> None:
            nonlocal count
            count += 1
            if count == step.at + 1 and step.trouble in AMID:
                self._strike(step)

        with self._throughout(step):
            self.amid = amid
            try:
                self.submit(step)
                seen.raised.append("")
            except BaseException as error:  # noqa: BLE001 - compared with the other path's
                frames = traceback.extract_tb(error.__traceback__)
                where = [f.name for f in frames if not f.filename.startswith(OURS)]
                ours = {"copy", "_strike"}
                seen.raised.append(f"{type(error).__name__} {[w for w in where if w not in ours]}")
            finally:
                self.amid = lambda: None
                self.driver.graph = False
        self.run.attachment.attach()

    def _strike(self, step: Step) -> None:
        match step.trouble:
            case "raise":
                raise HostError("of SGLang's own")
            case "unspeakable":
                raise UnspeakableError
            case "interrupt":
                raise Interrupt
            case "exit":
                raise SystemExit(3)
            case "detach":
                self.run.attachment.detach()
            case "graph":
                self.driver.graph = True
            case "collect":
                gc.collect(0)
            case "nested":
                self.submit(replace(step, kind="backup", pools=(1,), trouble="", form=""))
            case "another":
                self.submit(replace(step, pools=(1 - step.pools[0],), trouble="", form="alone"))
            case _:
                raise AssertionError(step)

    @contextlib.contextmanager
    def _throughout(self, step: Step) -> Iterator[None]:
        trouble = step.trouble
        with pytest.MonkeyPatch.context() as patch:
            if trouble == "full":
                self.session.bus.flush()  # what judging publishes has room
                patch.setattr(self.session.bus, "_capacity", 0)
            elif trouble == "disabled":
                patch.setattr(self.session.probe, "enabled", False)
            elif trouble == "untimed" and ENGINE:
                from sglang.srt.mem_cache import l2_transfer

                patch.setattr(l2_transfer, "_timing_events_supported", lambda: False)
            elif trouble in {"small", "large"}:
                for owner in (gpu, gpu_plans):
                    patch.setattr(owner, "IN_LINE_BYTES", 0)
                    patch.setattr(owner, "LARGE_BYTES", 0 if trouble == "large" else 1 << 60)
                self._forget()
            elif trouble.startswith("refused"):
                self.driver.fails_at = int(trouble[7:])
            elif trouble == "elsewhere":  # the indices are on another device
                for plan in self.plans():
                    patch.setattr(plan, "ordinal", plan.ordinal + 1)
            elif trouble == "captured":
                self.driver.graph = True
            else:
                self._around(trouble, patch)
            try:
                yield
            finally:
                self.driver.fails_at = 0
                self.run.attachment.hooks.requests.nodes.clear()
                if trouble in {"small", "large"}:
                    self._forget()

    def _around(self, trouble: str, patch: pytest.MonkeyPatch) -> None:
        """Change what a queue or the layer gates meet."""
        nodes = self.run.attachment.hooks.requests.nodes
        counters = [owner.layer_done_counter for owner in self.controllers]
        if trouble in {"asked", "odd nodes"}:
            nodes.keep(1, (Request("a"), Request("b"), Request("a")))
            if trouble == "odd nodes":
                patch.setattr(CacheOperation, "merge_ops", lambda queue: queue[0])
        elif trouble == "divided":
            patch.setitem(sys.modules, OWNER_BROADCAST[0], ModuleType("divided"))
        elif trouble == "other events":
            for counter in counters:
                patch.setattr(counter, "events", tuple(counter.events))
        elif trouble == "unfollowed":
            counters[0].update_producer()

    def plans(self) -> list[Plan]:
        """Return the plans made so far."""
        known = self.run.attachment.observer.devices.by_pool.values()
        return [plan for one in known for plan in one.plans.values()]

    def _forget(self) -> None:
        """Forget the plans, which know the limits."""
        for known in self.run.attachment.observer.devices.by_pool.values():
            known.plans.clear()

    def finish(self, seen: Outcome) -> Outcome:
        """Note events, and what is left behind."""
        observer = self.run.attachment.observer
        sink = self.run.sink
        first = min((event.op_id for event in sink.of(Copied)), default=0)
        for event in sink.of(Copied):
            shown = msgspec.structs.asdict(event)
            for name in ("time_ns", "duration_us", "trace_id", "span_id", "shared_with"):
                shown.pop(name)
            seen.events.append(shown | {"op_id": event.op_id - first})
        seen.findings = [(f.cls, f.pages, f.layer, f.count) for f in sink.of(Finding)]
        seen.errors = self.session.errors.counts()
        seen.driver = [_told(entry) for entry in self.driver.log]
        history = observer.devices.history
        seen.left = [
            observer.frames.current,
            set(observer.frames.pools),
            set(observer.calls.running),
            list(history._open),
            len(history._log),
            [set(vars(s.pool)) == f for s, f in zip(self.setups, self.fields, strict=True)],
            [lane.lock.locked() for lane in self.lanes],
            self._gates(),
        ]
        return seen

    def _gates(self) -> list[Any]:
        """Return what the layer gates know of each set of events."""
        gates = self.run.attachment.observer.gates
        sets = [one for owner in self.controllers for one in owner.layer_done_counter.events]
        loads = [gates.current.get(id(events)) for events in sets]
        return [
            *(
                load and (load.layers, load.opened, load.passed, sorted(load.pages))
                for load in loads
            ),
            *(load and (load.by.what, load.by.actor, *load.by.site[:2]) for load in loads),
            [gates.on_way.get(events) is load for events, load in zip(sets, loads, strict=True)],
            ["complete" in vars(events) for events in sets],
            [load and bool(load.sender) for load in loads],
            gates.here.loading and gates.here.loading.by.what,
        ]


def _queued(setup: Setup) -> Setup:
    """Return pools that a controller can be built over."""
    over = SimpleNamespace(
        device="cpu", layer_num=LAYERS, register_layer_transfer_counter=lambda _: None
    )
    return replace(setup, pool_device=setup.pool_device or over)


def _told(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a driver's call without SGLang's events, whose handles are addresses."""
    return tuple(one if not isinstance(one, int) or one < 1 << 16 else "event" for one in entry)


@contextlib.contextmanager
def rigged(start: Start, native: Native = Native.ON) -> Iterator[Rig]:
    """A rig whose events the driver knows."""
    with pytest.MonkeyPatch.context() as patch:
        released_streams.device_events(patch)
        patch.setattr(released_streams.Event, "cuda_event", property(id), raising=False)
        patch.setattr(attachment, "WITHIN_S", 0.0)
        yield Rig(start(checksum=Checksum.LOADS, native=native), Driver(patch), patch)


def outcome(steps: list[Step], start: Start, native: Native) -> Outcome:
    """Run a sequence in a fresh attachment over fresh pools."""
    seen = Outcome()
    with rigged(start, native) as rig:
        try:
            for step in steps:
                rig.step(step, seen)
            return rig.finish(seen)
        finally:
            rig.run.attachment.detach()
            rig.session.close()
