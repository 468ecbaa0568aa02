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
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.versions import layers_brought
from hicache_dbg.tracer.attach.sglang.whose import HERE
from hicache_dbg.tracer.events import Op

__all__ = ["DeviceCalls"]

Function = Callable[..., Any]


class DeviceCalls:
    """Follows the calls of pools on a GPU.

    Args:
        frames: the operations that threads are in.
        booked: what operations need once they are over, by session.
        submitted: told of each copy as its operation is submitted, before the bus gets it.
    """

    def __init__(
        self,
        frames: Frames,
        booked: Callable[[SglangSession], Booked],
        submitted: Callable[[Frame, DeviceOp], None],
    ) -> None:
        self._frames = frames
        self._booked = booked
        self._submitted = submitted
        self._books: tuple[SglangSession, Booked] | None = None
        self._plain: dict[type, bool] = {}

    def around(  # noqa: PLR0917
        self,
        session: SglangSession,
        known: DevicePool,
        original: Function,
        method: str,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run ``original``, a copy method of ``pool``, and note what it moves."""
        frames = self._frames
        plan = known.plan(method, session.probe)
        if id(pool) in frames.pools or not plan.wanted:
            return original(pool, *args, **kwargs)
        frame = frames.current
        if frame is not None:
            return self._noted(session, frame, known, plan, original, pool, args, kwargs)
        frame = frames.begin(session.probe, alone=True)
        try:
            return self._noted(session, frame, known, plan, original, pool, args, kwargs)
        finally:
            frames.end(frame)

    def conclude(self, frame: Frame) -> None:
        """An operation has been submitted, or has failed: its digests are enqueued, and the bus gets it."""
        ops: list[DeviceOp] = frame.on_device
        probe, now, whom = frame.probe, time.time_ns(), HERE.carried
        jobs = []
        for op in ops:
            if op.leave is not None:
                pop, name = op.leave
                pop(name, None)
            if op.status == "ok":
                op.status = frame.status
            op.time_ns, op.whom = now, whom
            if op.status == "ok":
                jobs.append(op)
        if jobs:
            try:
                jobs[0].pool.lane.conclude(jobs, frame.start, frame.over, timed=frame.timed)
            except Exception as error:  # noqa: BLE001 - those that were not digested are unwitnessed
                probe.errors.record("digest/device", error)
            for op in jobs:
                op.plan.timed = frame.timed
        for op in ops:
            self._submitted(frame, op)
            if not probe.push(op):
                op.drop()

    def _noted(  # noqa: PLR0917
        self,
        session: SglangSession,
        frame: Frame,
        known: DevicePool,
        plan: Plan,
        original: Function,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        entered = time.perf_counter()
        op: DeviceOp | None = None
        layer: int | None = None
        try:
            op, layer = self._op(session, frame, known, plan, pool, args, kwargs)
        except Exception as error:  # noqa: BLE001 - SGLang's call goes on without us
            session.errors.record("digest/device", error)
        if op is None:
            return original(pool, *args, **kwargs)
        inside = self._frames.pools
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
            session.probe.overhead_s += called - entered
        if layer is not None:
            op.layers = (*op.layers, layer)
            if len(op.layers) == 1:
                self._let_pass(frame, op, original, pool)
        return result

    def _op(  # noqa: PLR0917
        self,
        session: SglangSession,
        frame: Frame,
        known: DevicePool,
        plan: Plan,
        pool: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[DeviceOp | None, int | None]:
        """The operation that a call belongs to, begun if it is the first, and the layer of a load."""
        ends = plan.ends(args, kwargs)
        if ends is None:
            return None, None
        layer: int | None = None
        key = (id(pool), id(ends[0]), id(ends[1]))
        if plan.op is Op.LOAD:
            layer = _layer(pool, known, plan, args, kwargs)
            if layer is None:
                return None, None
            op = frame.loads_on_device.get(key)
            if op is not None and layer not in op.layers:
                return op, layer
        if frame.alone:  # whoever called may write its indices afterwards
            ends = ends[0].clone(), ends[1].clone()
        books = self._books
        if books is None or books[0] is not session:
            books = self._books = session, self._booked(session)
        op = DeviceOp(known, plan, pool, ends, args, kwargs, frame.op_id, books[1])
        frame.on_device.append(op)
        if layer is not None:
            frame.loads_on_device[key] = op
        return op, layer

    # -- the other layers of a load -------------------------------------------------------------

    def _let_pass(self, frame: Frame, op: DeviceOp, original: Function, pool: Any) -> None:
        """Take ourselves out of the way of the load's other layers, until its operation is submitted.

        For pools that have one such method of ours, and no layers of a draft's. Where the operation has
        each pool once, whatever layers it brings are this load's; else a call's own indices say so.
        """
        targets = getattr(pool, "target_layer_num", None) or op.plan.layers
        if frame.alone or targets < op.plan.layers or not self._is_plain(type(pool)):
            return
        bound, own = original.__get__(pool), vars(pool)
        name = op.plan.method
        if frame.call is not None and layers_brought(*frame.call) > op.plan.highest:
            own[name], op.layers = bound, op.plan.all
        else:
            own[name] = _same(op, bound, getattr(type(pool), name).__get__(pool))
        op.leave = own.pop, name

    def _is_plain(self, cls: type) -> bool:
        plain = self._plain.get(cls)
        if plain is None:
            methods = (
                vars(base).get(name) for base in cls.__mro__ for name in (LOAD, LOAD + PHYSICAL)
            )
            plain = self._plain[cls] = sum(map(is_ours, methods)) == 1
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
