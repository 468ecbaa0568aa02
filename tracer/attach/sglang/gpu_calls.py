"""What runs on SGLang's threads around copies whose device end is on a GPU: as little as there can be.

A call of a pool is noted as it comes. The digests are enqueued when the operation that it belongs to
has been submitted as a whole, and everything else is done on the bus's thread. Of a load's calls, one
a layer, the first is looked at; the others go straight to SGLang's own method wherever it is sure that
they bring the same load's other layers.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.attach.sglang.copies import layer_of
from hicache_dbg.tracer.attach.sglang.frames import Frame, Frames
from hicache_dbg.tracer.attach.sglang.gates import NO_PAGES, Gates
from hicache_dbg.tracer.attach.sglang.gpu_ops import Booked, DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool, Plan
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, PHYSICAL
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.versions import layers_brought
from hicache_dbg.tracer.attach.sglang.whose import HERE

__all__ = ["DeviceCalls"]

Function = Callable[..., Any]


class DeviceCalls:
    """Follows the calls of pools on a GPU; ``frames`` are the operations that threads are in.

    Args:
        booked: what operations need once they are over, by the session's probe.
        copies: told of each copy as its operation is submitted, before the bus gets it.
        gates: told of each load's.
        over: names of the host pools whose copies were given a device pool, by its identity.
    """

    def __init__(
        self,
        booked: Callable[[LayerProbe], Booked],
        copies: OpenCopies,
        gates: Gates,
        over: dict[int, set[str]],
    ) -> None:
        #: The numbers of operations that are under way, of all threads.
        self.running: set[int] = set()
        self.frames = self._frames = Frames(copies.submitted, self.conclude, self.running)
        self._booked = booked
        self._opening, self._here, self._over = copies.opening, gates.here, over
        self._books: tuple[LayerProbe, Booked] | None = None
        self._plain: dict[type, bool] = {}

    def alone(  # noqa: PLR0917
        self,
        probe: LayerProbe,
        known: DevicePool,
        original: Function,
        method: str,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """As :meth:`around`, for a call that no operation of SGLang's makes: it is one."""
        frame = self._frames.begin(probe, alone=True)
        try:
            return self.around(frame, known, original, method, pool, args, kwargs)
        finally:
            self._frames.end(frame)

    def around(  # noqa: C901, PLR0912, PLR0917 - each function more is a microsecond more of SGLang's
        self,
        frame: Frame,
        known: DevicePool,
        original: Function,
        method: str,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run ``original``, a copy method of ``pool``, and note what it moves."""
        inside = self._frames.pools
        if id(pool) in inside:
            return original(pool, *args, **kwargs)
        op: DeviceOp | None = None
        layer: int | None = None
        try:
            plan = known.plans.get(method)
            if plan is None or plan.probe is not frame.probe:
                plan = self._plan(known, method, frame.probe)
            if plan.usual and len(args) > 2:
                host, device = args[1], args[2]
            else:
                host, device = plan.ends(args, kwargs)
            if (
                plan.wanted
                and host is not None
                and device is not None
                and (host.numel() or device.numel())
            ):
                if plan.loads and not self._brings_every(frame, plan, pool):
                    op, layer = self._one_layer(frame, plan, pool, host, device, args, kwargs)
                else:
                    if frame.alone:  # whoever called may write its indices afterwards
                        host, device = host.clone(), device.clone()
                    op = DeviceOp(plan, pool, host, device, args, kwargs, frame.op_id)
                    frame.on_device.append(op)
                    if plan.loads:  # out of the way of its other calls, until it is submitted
                        op.layers, own = plan.all, pool.__dict__
                        own[method], op.leave = original.__get__(pool), (own.pop, method)
        except Exception as error:  # noqa: BLE001 - SGLang's call goes on without us
            frame.probe.errors.record("digest/device", error)
        if op is None:
            return original(pool, *args, **kwargs)
        inside.add(id(pool))
        try:
            result = original(pool, *args, **kwargs)
        except BaseException as error:
            op.status = f"{type(error).__name__}: {error}"
            raise
        finally:
            inside.discard(id(pool))
        if layer is not None:
            op.layers = (*op.layers, layer)
            if len(op.layers) == 1 and not frame.alone:
                self._let_pass(op, original, pool)
        return result

    def conclude(self, frame: Frame) -> None:
        """An operation has been submitted, or has failed: its digests are enqueued, and the bus gets it.

        All that the usual one needs is in here or in C, but for five calls: between two of SGLang's
        operations nothing of ours stays in a cache, and each function costs a microsecond.
        """
        ops, probe, jobs = frame.on_device, frame.probe, frame.on_device
        start, over, timed = frame.start, frame.over, frame.timed
        now, whom, thread = time.time_ns(), HERE.carried, self._frames.thread
        for op in ops:
            if op.leave is not None:
                pop, name = op.leave
                pop(name, None)
            op.time_ns, op.whom, op.thread = now, whom, thread
            if frame.status != "ok" or op.status != "ok":
                op.status = frame.status if op.status == "ok" else op.status
                jobs = [job for job in jobs if job is not op]
        try:
            if jobs and (len(jobs) > 1 or not jobs[0].at_once(start, over, timed=timed)):
                jobs[0].pool.lane.conclude(jobs, start, over, timed=timed)
        except Exception as error:  # noqa: BLE001 - those that were not digested are unwitnessed
            probe.errors.record("digest/device", error)
        for op in ops:
            plan, args = op.plan, op.args
            try:
                plan.timed = timed
                device_pool = (
                    args[0]
                    if plan.usual and args
                    else plan.argument("device_pool", args, op.kwargs)
                )
                if id(device_pool) != plan.over and device_pool is not None:
                    plan.over = id(device_pool)
                    self._over.setdefault(plan.over, set()).add(plan.pool)
                self._opening(op)
                loading = self._here.loading
                if loading is not None and plan.loads:
                    loading.pages.setdefault(plan.pool, NO_PAGES)
            except Exception as error:  # noqa: BLE001 - it is judged all the same
                probe.errors.record("digest/device", error)
            if not plan.push(op):
                op.drop()
        probe.overhead_s += (time.time_ns() - now) * 1e-9

    def _plan(self, known: DevicePool, method: str, probe: LayerProbe) -> Plan:
        """Of a method, under the settings of this session: made when it is first called."""
        plan = known.plan(method, probe)
        books = self._books
        if books is None or books[0] is not probe:
            books = self._books = probe, self._booked(probe)
        plan.booked = books[1]
        return plan

    def _one_layer(  # noqa: PLR0917
        self,
        frame: Frame,
        plan: Plan,
        pool: Any,
        host: torch.Tensor,
        device: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[DeviceOp | None, int | None]:
        """The load that a call belongs to, begun if it is the first, and the layer that it brings."""
        layer = _layer(pool, plan, args, kwargs)
        if layer is None:
            return None, None
        key = (id(pool), id(host), id(device))
        op = frame.loads_on_device.get(key)
        if op is None or layer in op.layers:
            if frame.alone:
                host, device = host.clone(), device.clone()
            op = DeviceOp(plan, pool, host, device, args, kwargs, frame.op_id)
            frame.loads_on_device[key] = op
            frame.on_device.append(op)
        return op, layer

    # -- the other layers of a load -------------------------------------------------------------

    def _brings_every(self, frame: Frame, plan: Plan, pool: Any) -> bool:
        """Whether a load's operation has the pool once, and each of its layers, so that all calls are alike."""
        if (
            frame.call is None
            or (getattr(pool, "target_layer_num", None) or plan.layers) < plan.layers
        ):
            return False  # it has layers of a draft's
        if plan.passes is None:
            plan.passes = self._passes(plan, pool)
        return plan.passes and layers_brought(*frame.call) > plan.highest

    def _let_pass(self, op: DeviceOp, original: Function, pool: Any) -> None:
        """Let the load's other layers pass, as their calls' own indices tell them."""
        if self._passes(op.plan, pool):
            own, name = vars(pool), op.plan.method
            wrapped = getattr(type(pool), name).__get__(pool)
            own[name] = _same(op, original.__get__(pool), wrapped)
            op.leave = own.pop, name

    def _passes(self, plan: Plan, pool: Any) -> bool:
        """Whether a pool has one such method of ours, and no layers of a draft's."""
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


def _same(op: DeviceOp, bound: Function, wrapped: Function) -> Function:
    """Counts a call that brings another layer of ``op``, and lets every other one be looked at."""
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
