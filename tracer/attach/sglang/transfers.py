"""Prefill to decode: what both ends say about their memory, what is handed over, and what arrives.

A page has the same number in its request at both ends, and the room identifies the request. Digests are
stated for joining both services' recordings; neither end sees the other's bytes.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.classes import subclasses
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.session import SglangSession
from hicache_dbg.tracer.attach.sglang.transfer_args import (
    MHA,
    MLA,
    agreed_fields,
    mirror_of,
    own_fields,
    peer_fields,
)
from hicache_dbg.tracer.checks.contract import compare_fields
from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.events import DIRECTION, Copied, Op, SkipReason, Topic
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.settings import Checksum

__all__ = ["BASES", "MODULES", "Transfers", "manager_classes"]

Function = Callable[..., Any]

_DISAGGREGATION = "sglang.srt.disaggregation"
#: The modules that define managers, senders and receivers.
MODULES: tuple[str, ...] = tuple(
    f"{_DISAGGREGATION}.{name}.conn" for name in ("base", "common", "mooncake", "nixl", "fake")
)
BASES: tuple[str, ...] = ("BaseKVManager", "BaseKVSender", "BaseKVReceiver")
#: Used by warm-up requests: nothing is handed over.
_FAKES = {"FakeKVSender", "FakeKVReceiver"}

#: The constructor arguments that a manager keeps.
_KEPT = ("kv_args", "disaggregation_mode", "is_mla_backend")

MOST_PAGES_KEPT = 64
_ids = itertools.count(1)


def manager_classes() -> list[type]:
    """Return every manager class that exists, except the abstract one."""
    base = getattr(sys.modules.get(MODULES[0]), BASES[0], None)
    return list(subclasses([base]))[1:] if isinstance(base, type) else []


@dataclass(slots=True)
class _End:
    """This process's end of one manager's transfers."""

    args: Any
    role: str
    split: str
    tp: int
    pp: int
    mirror: MirrorViews
    resharded: bool = False

    @property
    def on_cpu(self) -> bool:
        return next(iter(self.mirror.device.values())).device == "cpu"


@dataclass(slots=True)
class _Request:
    """One request's transfer at this end, known since ``began_ns``.

    ``asked`` are the pages in which decode wants it; ``moved`` is how many pages have moved.
    """

    end: _End
    room: str
    began_ns: int = field(default_factory=time.time_ns)
    asked: Pages = field(default_factory=lambda: np.zeros(0, np.int64))
    moved: int = 0
    over: bool = False


class Transfers:
    """Follows the managers, senders and receivers of this process.

    Args:
        say: Has the session, and takes findings.
        started: Starts the session, if no host pool has done so.
    """

    def __init__(self, say: Say, started: Callable[[], SglangSession | None]) -> None:
        self._say = say
        self._started = started
        self._digester = CpuDigester()
        self._ends: WeakKeyDictionary[Any, _End] = WeakKeyDictionary()
        self._requests: WeakKeyDictionary[Any, _Request] = WeakKeyDictionary()

    # -- wrappers -------------------------------------------------------------------------------

    def managing(self, original: Function) -> Function:
        """Wrap ``__init__`` of a manager: which memory it registers."""
        args_of = argument(original, "args", at=1)
        mode_of = argument(original, "disaggregation_mode", at=2)
        mla_of = argument(original, "is_mla_backend", at=4)

        def after(given: Any, _: Any, error: BaseException | None) -> None:
            if error is None:
                mode = mode_of(*given)
                role, is_mla = str(getattr(mode, "value", mode)), bool(mla_of(*given))
                self._manager(given[0][0], args_of(*given), role, is_mla=is_mla)

        return around(self._say, "attach/manager", original, lambda *given: given, after)

    def registering(self, original: Any) -> Any:
        """Wrap ``KVArgsRegisterInfo.from_zmq``: decode tells prefill about its memory."""

        def after(_: Any, info: Any, error: BaseException | None) -> None:
            if error is None:
                self._registered(info)

        function = original.__func__
        return classmethod(
            around(self._say, "attach/registration", function, lambda *given: given, after)
        )

    def beginning(self, original: Function, follow: Callable[[type], None]) -> Function:
        """Wrap ``__init__`` of a sender or receiver; ``follow`` wraps what its class defines."""
        names = (("mgr", 1), ("bootstrap_addr", 2), ("bootstrap_room", 3))
        manager_of, address_of, room_of = (argument(original, name, at) for name, at in names)

        def after(given: Any, _: Any, error: BaseException | None) -> None:
            one, manager = given[0][0], manager_of(*given)
            end = self._ends.get(manager) if error is None else None
            if end is not None and type(one).__name__ not in _FAKES:
                follow(type(one))
                end.resharded |= _from_other_ranks(manager, end, address_of(*given))
                self._requests[one] = _Request(end, str(room_of(*given)))

        return around(self._say, "attach/request", original, lambda *given: given, after)

    def sending(self, original: Function) -> Function:
        """Wrap ``send``: pages are handed over as they are now."""
        indices_of = argument(original, "kv_indices", at=1)
        event_of = argument(original, "indices_event")

        def before(*given: Any) -> Any:
            request = self._requests.get(given[0][0])
            if request is None:
                return None
            if not request.over:
                request.over = True  # not again by the method of a base class
                indices = indices_of(*given)
                waits = event_of(*given) is not None  # they are still being written
                pages = None if waits else _numbers(indices)
                self._move(Op.SEND, request, len(indices), pages)
            return request

        def after(request: Any, _: Any, __: BaseException | None) -> None:
            request.over = False

        return around(self._say, "attach/send", original, before, after)

    def asking(self, original: Function) -> Function:
        """Wrap ``send_metadata``: the pages in which decode wants them."""
        indices_of = argument(original, "kv_indices", at=1)

        def before(*given: Any) -> Any:
            request = self._requests.get(given[0][0])
            if request is not None:
                request.asked = _numbers(indices_of(*given))

        return around(self._say, "attach/send_metadata", original, before, lambda *_: None)

    def polling(self, original: Function) -> Function:
        """Wrap ``poll``: the first success of a receiver means that the pages have arrived."""

        def before(*given: Any) -> Any:
            request = self._requests.get(given[0][0])
            waits = request is not None and request.end.role == "decode" and not request.over
            return request if waits else None

        def after(request: Any, result: Any, _: BaseException | None) -> None:
            if result == _success():
                request.over = True
                self._move(Op.RECV, request, len(request.asked), request.asked)

        return around(self._say, "attach/poll", original, before, after)

    # -- what is said ---------------------------------------------------------------------------

    def adopt(self, managers: Iterable[Any]) -> list[str]:
        """Adopt managers that exist already, and what decode has registered with them.

        Returns:
            What is unknown because this version's managers do not keep it.
        """
        unknown = []
        for manager in managers:
            if any(not hasattr(manager, name) for name in _KEPT):
                unknown.append(
                    f"{type(manager).__name__}: made before we came, its memory is not kept"
                )
                continue
            with self._say.errors("attach/manager"):
                role = str(getattr(manager.disaggregation_mode, "value", ""))
                is_mla = bool(manager.is_mla_backend)
                self._manager(manager, manager.kv_args, role, is_mla=is_mla)
                for info in list(getattr(manager, "decode_kv_args_table", {}).values()):
                    self._registered(info)
        return unknown

    def _manager(self, manager: Any, args: Any, role: str, *, is_mla: bool) -> None:
        session = self._started()
        if session is None or manager in self._ends or role not in {"prefill", "decode"}:
            return
        split = MLA if is_mla else MHA
        tp, pp = (int(getattr(manager, name, 1) or 1) for name in ("attn_tp_size", "pp_size"))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        end = _End(args, role, split, tp, pp, mirror_of(args, device))
        self._ends[manager] = end
        for key, value in agreed_fields(args, split=split, tp=tp, pp=pp).items():
            session.state(Topic.CONTRACT, (value,), role=role, key=key)

    def _registered(self, info: Any) -> None:
        """Check, before a byte moves, whether decode means the same pages."""
        told = getattr(info, "dst_attn_tp_size", None) or getattr(info, "decode_tp_size", None)
        peers = int(told or 1)
        for end in list(self._ends.values()):
            if end.role != "prefill":
                continue
            end.resharded |= end.split == MHA and peers != end.tp
            mine = own_fields(end.args, split=end.split, tp=end.tp, pp=end.pp)
            if peers != end.tp:  # states of other shares of the heads
                mine.pop("state_item_lens", None)
            theirs = peer_fields(info, split=end.split, tp=peers, like=mine)
            pool = end.mirror.pool
            self._say.publish(compare_fields(pool, mine, theirs, time_ns=time.time_ns()))

    def _move(self, op: Op, request: _Request, count: int, pages: Pages | None) -> None:
        """Record that ``count`` pages moved; ``pages`` is None if their numbers are not known yet."""
        first = request.moved
        request.moved += count
        session, mirror = self._say.session(), request.end.mirror
        if session is None or not count or not session.settings.traces(mirror.pool):
            return
        skip = SkipReason.UNREADABLE if pages is None else _unread(session, request.end)
        if pages is not None and skip is None:
            self._tiles(session, request, pages, first)
        named = () if pages is None else tuple(pages[:MOST_PAGES_KEPT].tolist())
        copied = _copied(session, op, mirror, count=count, named=named, skip=skip)
        session.bus.publish(copied)
        if not request.end.resharded:
            topic = Topic.SENT if op is Op.SEND else Topic.RECEIVED
            session.state(
                topic,
                (f"{request.moved}",),
                role=request.end.role,
                request=request.room,
                began_ns=request.began_ns,
            )

    def _tiles(self, session: SglangSession, request: _Request, pages: Pages, first: int) -> None:
        """State the digest of every tile of these pages, for the join."""
        mirror = request.end.mirror
        for component, view in mirror.device.items():
            layers = tuple(range(view.layers))
            digests = self._digester.digest(view, layers, pages)
            for at in range(len(pages)):
                session.state(
                    Topic.TILES,
                    tuple(f"{int(digest):016x}" for digest in digests[:, at]),
                    role=request.end.role,
                    request=request.room,
                    pool=mirror.pool,
                    component=component,
                    shard=f"{session.settings.rank}" if request.end.split == MHA else "",
                    page=first + at,
                    layers=layers,
                )


def _unread(session: SglangSession, end: _End) -> SkipReason | None:
    """Return why no tile is digested; None if they are."""
    if session.settings.checksum is Checksum.OFF:
        return SkipReason.OFF
    if end.resharded:
        return SkipReason.RESHARDED
    return None if end.on_cpu else SkipReason.UNREADABLE


def _from_other_ranks(manager: Any, end: _End, address: Any) -> bool:
    """Return whether decode gets its pages in parts, from a different number of ranks."""
    known = getattr(manager, "prefill_info_table", None) or {}
    size = getattr(known.get(address), "attn_tp_size", None)
    return end.role == "decode" and end.split == MHA and size is not None and int(size) != end.tp


def _numbers(indices: Any) -> Pages:
    return np.array(indices, np.int64).reshape(-1)


def _success() -> Any:
    return sys.modules[MODULES[0]].KVPoll.Success


def _copied(
    session: SglangSession,
    op: Op,
    mirror: MirrorViews,
    *,
    count: int,
    named: tuple[int, ...],
    skip: SkipReason | None,
) -> Copied:
    views = tuple(mirror.device.values())
    tiles = count * sum(view.layers for view in views)
    source, destination = DIRECTION[op]
    return Copied(
        time_ns=time.time_ns(),
        rank=session.settings.rank,
        pool=mirror.pool,
        op=op,
        token_granular=False,
        layout=mirror.layout,
        h=count,
        d=count,
        slot_page=mirror.slot_page,
        unit=mirror.index_unit,
        pages=count,
        item_bytes=mirror.item_bytes,
        dtype=views[0].dtype,
        layers=sum(view.layers for view in views),
        cls=mirror.host_cls,
        io_backend="transfer",
        src=source,
        dst=destination,
        bytes=count * sum(view.page_span * view.layers for view in views),
        duration_us=0.0,
        witnessed=0 if skip else tiles,
        skipped={skip.value: tiles} if skip else {},
        op_id=next(_ids),
        device_pages=named,
    )
