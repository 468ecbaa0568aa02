"""What runs on SGLang's threads around copies whose device end is on a GPU: as little as there can be.

A call of a pool is noted as it comes. The digests are enqueued when the operation that it belongs to
has been submitted, and everything else is left to the bus's thread. Of a load's calls, one a layer,
the first is looked at; the others go straight to SGLang's own method wherever they are certain to
bring the other layers of the same load.

SGLang's pools are given an attribute and lose it again; their ``__dict__`` is never asked for: from
then on CPython 3.11 and 3.12 take twice as long for each attribute of the pool that SGLang reads.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from hicache_dbg.tracer.attach.sglang.classes import is_ours, ours
from hicache_dbg.tracer.attach.sglang.copies import layer_of
from hicache_dbg.tracer.attach.sglang.frames import Frame, Frames, HostCopies, status_of
from hicache_dbg.tracer.attach.sglang.gates import NO_PAGES, Gates
from hicache_dbg.tracer.attach.sglang.gpu_booked import Booked
from hicache_dbg.tracer.attach.sglang.gpu_ops import DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool, Plan
from hicache_dbg.tracer.attach.sglang.gpu_pools import DevicePools
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, PHYSICAL
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.versions import layers_brought
from hicache_dbg.tracer.attach.sglang.whose import HERE

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.native.helper import Helper

__all__ = ["DeviceCalls"]

Function = Callable[..., Any]


class DeviceCalls:
    """Follows calls of pools on a GPU, and the operations that threads are in (``frames``).

    Args:
        devices: The pools on a GPU.
        booked: Returns what operations need once they are over, by the session's probe.
        copies: Takes each copy as its operation is submitted.
        gates: Takes each copy of a load.
        over: Names of the host pools whose copies were given a device pool, by its identity.
        entered: Returns the session where operations are traced.
    """

    def __init__(  # noqa: PLR0917
        self,
        devices: DevicePools,
        booked: Callable[[LayerProbe], Booked],
        copies: OpenCopies,
        gates: Gates,
        over: dict[int, set[str]],
        entered: Callable[[], SglangSession | None],
    ) -> None:
        #: The numbers of operations that are being submitted, of all threads.
        self.running: set[int] = set()
        self.frames = self._frames = Frames(self.end, self.running)
        self.pools, self.history = devices.by_pool, devices.history
        self._booked, self._entered = booked, entered
        self._submitted, self.under_way = copies.submitted, copies.under_way
        self._here, self._over = gates.here, over
        self._books: tuple[LayerProbe, Booked] | None = None
        self._plain: dict[type, bool] = {}
        #: Makes compiled wrappers, where there is a compiled helper.
        self.helper: Helper | None = None

    def copying(self, original: Function, method: str, elsewhere: Function) -> Function:
        """Return the wrapper of a copy method of host pools.

        ``elsewhere`` runs the calls of pools that are not on a GPU, are not known yet, or whose work
        would become part of a CUDA graph; it is given the wrapper, the pool and its arguments.
        """
        pools, frames, layered = self.pools, self._frames, method.startswith(LOAD)

        @wraps(original)
        def copy(pool: Any, *args: Any, **kwargs: Any) -> Any:
            since = time.perf_counter()
            known, frame = pools.get(id(pool)), frames.current
            if known is None or known.lane.captures():
                return elsewhere(copy, pool, args, kwargs)
            if frame is None:
                return self._alone(copy, original, pool, args, kwargs)
            inside = frames.pools
            if id(pool) in inside:
                return original(pool, *args, **kwargs)
            op: DeviceOp | None = None
            layer: int | None = None
            try:
                plan = known.plans.get(method)
                if plan is None or plan.probe is not frame.probe:
                    plan = self._plan(known, method, frame.probe)
                host, device = (
                    args[1:3] if plan.usual and len(args) > 2 else plan.ends(args, kwargs)
                )
                if (
                    plan.wanted
                    and host is not None
                    and device is not None
                    and (host.numel() or device.numel())
                ):
                    if layered:
                        op, layer = self._load(
                            frame, plan, pool, host, device, args, kwargs, original
                        )
                    else:
                        op = DeviceOp(plan, frame, pool, host, device, args, kwargs)
            except Exception as error:  # noqa: BLE001 - SGLang's call goes on without us
                frame.probe.errors.record("digest/device", error)
            frame.cost_s += time.perf_counter() - since
            if op is None:
                return original(pool, *args, **kwargs)
            inside.add(id(pool))
            try:
                result = original(pool, *args, **kwargs)
            except BaseException as error:
                op.status = status_of(error)
                raise
            finally:
                inside.discard(id(pool))
            if layer is not None:
                since = time.perf_counter()
                self._came(op, layer, original)
                frame.cost_s += time.perf_counter() - since
            return result

        helper = self.helper
        return ours(copy) if helper is None else helper.copying(original, ours(copy), method)

    def end(self, frame: Frame) -> None:
        """End an operation, which was submitted or has failed: enqueue its digests, and tell the bus.

        An interrupt, such as KeyboardInterrupt, is raised again when that is done.
        """
        self._frames.current = None
        since, interrupt = time.perf_counter(), None
        ops: list[DeviceOp] = frame.on_device
        probe, history = frame.probe, self.history
        frame.ended_ns, frame.whom, frame.thread = time.time_ns(), HERE.carried, self._frames.thread
        for op in ops:
            op.moment = history.now
            history.begun(op.moment)
        try:
            if frame.on_host is not None:
                self._end_on_host(frame, frame.on_host)
            if ops and frame.status == "ok":
                one = ops[0]
                if len(ops) > 1 or one.status != "ok" or not one.at_once():
                    self._enqueue(frame)
        except BaseException as error:  # noqa: BLE001 - SGLang's call goes on without us
            interrupt = _interrupt(probe, error)
            for op in ops:
                op.give_up()
        for op in ops:
            interrupt = self._tell(op) or interrupt
        ops.clear()  # they refer to the frame: no cycle is left to the garbage collector
        self.running.discard(frame.op_id)
        probe.overhead_s += frame.cost_s + time.perf_counter() - since
        if interrupt is not None:
            raise interrupt

    def _tell(self, op: DeviceOp) -> BaseException | None:
        """Tell the bus and the books of a copy, or forget it; return what interrupted that."""
        plan, told, interrupt = op.plan, False, None
        try:
            if plan.loads:
                self._loaded(op)
            plan.timed = op.frame.timed
            if not op.args or id(op.args[0]) != plan.over:
                self.moved_over(op)
            # The bus first: pages that are closed before they are known would stay open.
            told = plan.push(op)
            if told:
                self.under_way[op.stream].append(op)
        except BaseException as error:  # noqa: BLE001 - SGLang's call goes on without us
            interrupt = _interrupt(op.frame.probe, error)
        if not told:
            op.drop()
        return interrupt

    def _enqueue(self, frame: Frame) -> None:
        """Enqueue the digests of an operation that takes more than one launch a component."""
        jobs = [op for op in frame.on_device if op.status == "ok"]
        if jobs:
            jobs[0].plan.lane.conclude(jobs, frame.start, frame.over, timed=frame.timed)

    def _end_on_host(self, frame: Frame, copies: HostCopies) -> None:
        copies.close(frame.probe)
        self._submitted(copies.opened, frame.over)

    def moved_over(self, op: DeviceOp) -> None:
        """Note the device pool that a call names, where that is another than the last time."""
        over = op.plan.argument("device_pool", op.args, op.kwargs)
        op.plan.over = id(over)
        if over is not None:
            self._over.setdefault(id(over), set()).add(op.plan.pool)

    def _alone(
        self,
        copy: Function,
        original: Function,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call that no operation of SGLang's makes: it is one."""
        session = self._entered()
        if session is None:
            return original(pool, *args, **kwargs)
        frame = self._frames.begin(session.probe, alone=True)
        try:
            return copy(pool, *args, **kwargs)
        finally:
            self._frames.end(frame)

    def _plan(self, known: DevicePool, method: str, probe: LayerProbe) -> Plan:
        """Return the plan of a method under this session's settings, made when it is first called.

        Other threads find it once it is complete.
        """
        plan = Plan(known, method, probe)
        books = self._books
        if books is None or books[0] is not probe:
            books = self._books = probe, self._booked(probe)
        plan.booked = books[1]
        if self.helper is not None:
            self.helper.compile(plan)
        known.plans[method] = plan
        return plan

    # -- loads, a call a layer ------------------------------------------------------------------

    def _load(  # noqa: PLR0917
        self,
        frame: Frame,
        plan: Plan,
        pool: Any,
        host: torch.Tensor,
        device: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Function,
    ) -> tuple[DeviceOp | None, int | None]:
        """Return the load that a call belongs to, begun if it is the first, and the layer it brings.

        The layer is None where no other call of the load is looked at.
        """
        if self.brings_every(frame, plan, pool):
            op = DeviceOp(plan, frame, pool, host, device, args, kwargs)
            op.layers, op.is_aside = plan.all, True
            setattr(pool, plan.method, original.__get__(pool))
            return op, None
        layer = _layer(pool, plan, args, kwargs)
        if layer is None:
            return None, None
        for op in reversed(frame.on_device):
            if op.owner is pool and op.host is host and op.device is device:
                if layer not in op.layers:
                    return op, layer
                break
        return DeviceOp(plan, frame, pool, host, device, args, kwargs), layer

    def _loaded(self, op: DeviceOp) -> None:
        """Put our wrapper back in its place, and note at the gates that the pool is loaded."""
        if op.is_aside:
            with suppress(AttributeError):  # another load of the same pool may have done it
                delattr(op.owner, op.plan.method)
        if self._here.loading is not None:
            self._here.loading.pages.setdefault(op.plan.pool, NO_PAGES)

    def brings_every(self, frame: Frame, plan: Plan, pool: Any) -> bool:
        """Return whether the operation has the pool once and each of its layers: all calls are alike."""
        if (
            frame.call is None
            or (getattr(pool, "target_layer_num", None) or plan.layers) < plan.layers
        ):
            return False  # it has layers of a draft model
        if plan.passes is None:
            plan.passes = self._passes(plan, pool)
        return plan.passes and layers_brought(*frame.call) > plan.highest

    def _came(self, op: DeviceOp, layer: int, original: Function) -> None:
        """Note a layer that came; behind the first one, let the others pass."""
        op.layers = (*op.layers, layer)
        if len(op.layers) == 1 and not op.frame.alone and self._passes(op.plan, op.owner):
            pool, name = op.owner, op.plan.method
            wrapped = getattr(type(pool), name).__get__(pool)
            setattr(pool, name, _same(op, original.__get__(pool), wrapped))
            op.is_aside = True

    def _passes(self, plan: Plan, pool: Any) -> bool:
        """Return whether a pool has one such method of ours, and no layers of a draft model."""
        if (getattr(pool, "target_layer_num", None) or plan.layers) < plan.layers:
            return False
        plain = self._plain.get(type(pool))
        if plain is None:
            methods = (
                vars(base).get(name)
                for base in type(pool).__mro__
                for name in (LOAD, LOAD + PHYSICAL)
            )
            plain = self._plain[type(pool)] = sum(map(is_ours, methods)) == 1
        return plain


def _interrupt(probe: LayerProbe, error: BaseException) -> BaseException | None:
    """Count a failure of ours; return what is none, such as KeyboardInterrupt."""
    if not isinstance(error, Exception):
        return error
    probe.errors.record("digest/device", error)
    return None


def _same(op: DeviceOp, bound: Function, wrapped: Function) -> Function:
    """Return a method that notes the layers of ``op``, and lets every other call be looked at."""
    host, device = op.host, op.device
    positions = op.pool.record.geometry.positions  # type: ignore[union-attr]

    def load(over: Any, hosts: Any, devices: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        layer = positions.get(number)
        if hosts is not host or devices is not device or layer is None or layer in op.layers:
            return wrapped(over, hosts, devices, number, *args, **kwargs)
        result = bound(over, hosts, devices, number, *args, **kwargs)
        op.layers = (*op.layers, layer)
        return result

    return load


def _layer(pool: Any, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    named = {name: plan.argument(name, args, kwargs) for name in ("layer_id", "is_draft")}
    return layer_of(pool, plan.device_pool.record, named)
