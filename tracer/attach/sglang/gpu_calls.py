"""What runs on SGLang's threads around copies whose device end is on a GPU: as little as there can be.

A call of a pool is noted as it comes. The digests are enqueued when the operation that it belongs to
has been submitted as a whole, and everything else is done on the bus's thread. Of a load's calls, one
a layer, the first is looked at; the others go straight to SGLang's own method wherever it is sure that
they bring the same load's other layers.
"""

import time
from collections.abc import Callable
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import is_ours
from hicache_dbg.tracer.attach.sglang.copies import layer_of
from hicache_dbg.tracer.attach.sglang.frames import Frame, Frames
from hicache_dbg.tracer.attach.sglang.gpu_ops import Booked, DeviceOp
from hicache_dbg.tracer.attach.sglang.gpu_plans import DevicePool, Plan
from hicache_dbg.tracer.attach.sglang.kinds import LOAD, PHYSICAL
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.versions import layers_brought
from hicache_dbg.tracer.attach.sglang.whose import HERE

__all__ = ["DeviceCalls"]

Function = Callable[..., Any]


class DeviceCalls:
    """Follows the calls of pools on a GPU.

    Args:
        frames: the operations that threads are in.
        booked: what operations need once they are over, by the session's probe.
        submitted: told of each copy as its operation is submitted, before the bus gets it.
    """

    def __init__(
        self,
        frames: Frames,
        booked: Callable[[LayerProbe], Booked],
        submitted: Callable[[DeviceOp], None],
    ) -> None:
        self._frames = frames
        self._booked = booked
        self._submitted = submitted
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

    def around(  # noqa: PLR0917
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
        op: DeviceOp | None = None
        layer: int | None = None
        if id(pool) not in inside:
            try:
                op, layer = self._op(frame, known, original, method, pool, args, kwargs)
            except Exception as error:  # noqa: BLE001 - SGLang's call goes on without us
                frame.probe.errors.record("digest/device", error)
        if op is None:
            return original(pool, *args, **kwargs)
        inside.add(id(pool))
        called = time.perf_counter()
        try:
            result = original(pool, *args, **kwargs)
        except BaseException as error:
            op.status = f"{type(error).__name__}: {error}"
            raise
        finally:
            inside.discard(id(pool))
            op.duration_us += (time.perf_counter() - called) * 1e6
        if layer is not None:
            op.layers = (*op.layers, layer)
            if len(op.layers) == 1 and not frame.alone:
                self._let_pass(op, original, pool)
        return result

    def conclude(self, frame: Frame) -> None:
        """An operation has been submitted, or has failed: its digests are enqueued, and the bus gets it."""
        ops, probe, jobs = frame.on_device, frame.probe, frame.on_device
        now, whom, thread = time.time_ns(), HERE.carried, self._frames.thread
        for op in ops:
            if op.leave is not None:
                pop, name = op.leave
                pop(name, None)
            op.time_ns, op.whom, op.thread = now, whom, thread
            if frame.status != "ok" or op.status != "ok":
                op.status = frame.status if op.status == "ok" else op.status
                jobs = [job for job in jobs if job is not op]
        if jobs:
            try:
                jobs[0].pool.lane.conclude(jobs, frame.start, frame.over, timed=frame.timed)
            except Exception as error:  # noqa: BLE001 - those that were not digested are unwitnessed
                probe.errors.record("digest/device", error)
        for op in ops:
            op.plan.timed = frame.timed
            self._submitted(op)
            if not probe.push(op):
                op.drop()
        probe.overhead_s += (time.time_ns() - now) * 1e-9

    def _op(  # noqa: PLR0917
        self,
        frame: Frame,
        known: DevicePool,
        original: Function,
        method: str,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[DeviceOp | None, int | None]:
        """The operation that a call belongs to, begun if it is the first.

        And which layer of a load it brings: None where that makes no difference, for all will come.
        """
        probe, plan = frame.probe, known.plans.get(method)
        if plan is None or plan.probe is not probe:
            plan = known.plan(method, probe)
        ends = plan.ends(args, kwargs) if plan.wanted else None
        if ends is None:
            return None, None
        books = self._books
        if books is None or books[0] is not probe:
            books = self._books = probe, self._booked(probe)
        if not plan.loads or self._brings_every(frame, plan, pool):
            if frame.alone:  # whoever called may write its indices afterwards
                ends = ends[0].clone(), ends[1].clone()
            op = DeviceOp(known, plan, pool, ends, args, kwargs, frame.op_id, books[1])
            frame.on_device.append(op)
            if plan.loads:
                op.layers = plan.all
                self._stand_in(op, pool, original.__get__(pool))
            return op, None
        layer = _layer(pool, known, plan, args, kwargs)
        if layer is None:
            return None, None
        key = (id(pool), id(ends[0]), id(ends[1]))
        known_op = frame.loads_on_device.get(key)
        if known_op is None or layer in known_op.layers:
            if frame.alone:
                ends = ends[0].clone(), ends[1].clone()
            known_op = DeviceOp(known, plan, pool, ends, args, kwargs, frame.op_id, books[1])
            frame.loads_on_device[key] = known_op
            frame.on_device.append(known_op)
        return known_op, layer

    # -- the other layers of a load -------------------------------------------------------------

    def _brings_every(self, frame: Frame, plan: Plan, pool: Any) -> bool:
        """Whether a load's operation has the pool once, and each of its layers, so that all calls are alike."""
        return (
            frame.call is not None
            and self._passes(plan, pool)
            and layers_brought(*frame.call) > plan.highest
        )

    def _let_pass(self, op: DeviceOp, original: Function, pool: Any) -> None:
        """Let the load's other layers pass, as their calls' own indices tell them."""
        if self._passes(op.plan, pool):
            wrapped = getattr(type(pool), op.plan.method).__get__(pool)
            self._stand_in(op, pool, _same(op, original.__get__(pool), wrapped))

    def _stand_in(self, op: DeviceOp, pool: Any, method: Function) -> None:
        """Take ourselves out of the way of a pool's calls, until the operation is submitted."""
        own, name = vars(pool), op.plan.method
        own[name] = method
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


def _layer(
    pool: Any, known: DevicePool, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    named = {name: plan.argument(name, args, kwargs) for name in ("layer_id", "is_draft")}
    return layer_of(pool, known.record, named)
