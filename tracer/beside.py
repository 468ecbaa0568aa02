"""Copies that a device follows by itself, on the host's threads: begun, said to be queued, over."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.digest.tiles import DigestRefusedError
from hicache_dbg.tracer.events import Event, Op, SkipReason, Tier
from hicache_dbg.tracer.following import Part, Watcher, let_go, parts_of
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import Copy
from hicache_dbg.tracer.record import CopyRecord, Followed
from hicache_dbg.tracer.selfcheck import InternalErrors

__all__ = ["Beside", "ascends", "misfit", "written"]

_ONE = np.array(1)  # an int would be made into one at every addition
#: Tuples of layers that are remembered to ascend.
_MOST_KNOWN = 256


class Beside:
    """Leaves copies to the device and the bus: on the host's thread they are begun and ended, no more.

    They are begun when the engine has queued copies, and digests are enqueued when it has queued
    all of them: what the host does for that then takes no time of the operation's.

    Args:
        watcher: follows operations where the bytes are.
        bus: where records go.
        errors: where failures of the tracer itself are counted.
        by_call: takes the digests of a copy that could not be followed.
        judge: turns what is known of a copy into events, on the bus's thread.
    """

    def __init__(
        self,
        watcher: Watcher,
        bus: Bus,
        errors: InternalErrors,
        by_call: Callable[[CopyRecord], None],
        judge: Callable[[CopyRecord], list[Event]],
    ) -> None:
        self._watcher = watcher
        self._bus = bus
        self._errors = errors
        self._by_call = by_call
        self._judge = judge
        self._ascending: dict[int, tuple[int, ...]] = {}  # by identity

    def begin(self, copies: Sequence[Copy]) -> list[Followed] | None:
        """Copies under way, or yet to be; None if a device cannot follow every one of these.

        Whether it will follow a load is settled now: digests by call would have to be taken before
        the engine opens its last gate. Why it will not is for who asks again, copy by copy.
        """
        followed: list[Followed] = []
        for copy in copies:
            one = self._begin(copy)
            if one is None:
                for earlier in followed:
                    let_go(earlier.watched or [])
                return None
            followed.append(one)
        return followed

    def queued(self, followed: Sequence[Followed], stream: int, under_way: int) -> None:
        """``stream`` has been given all copies, and no mark yet of their end."""
        for one in followed:
            try:
                if one.watched is None:
                    one.watched = self._watch(one)
                for part in one.watched:
                    part.watch.queued(stream, under_way)
            except DigestRefusedError as refused:
                one.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - whatever it is, the copy goes on
                one.skip = SkipReason.INTERNAL_ERROR
                self._errors.record("digest/queued", error)

    def over(self, followed: Sequence[Followed], duration_us: float, status: str) -> None:
        """Every byte is there, or the call has failed; the pages are still the operation's."""
        now = time.time_ns()
        for one in followed:
            one.time_ns, one.duration_us, one.status = now, duration_us, status
            try:
                if one.watched:
                    for part in one.watched:
                        part.watch.finish()
                elif status == "ok" and one.skip is None:
                    self._unwatched(one)
            except DigestRefusedError as refused:
                one.skip = SkipReason(refused.reason)
            except Exception as error:  # noqa: BLE001 - what is not there vouches for nothing
                one.skip = SkipReason.INTERNAL_ERROR
                self._errors.record("digest/join", error)
            if not self._bus.push(one):
                for part in one.watched or ():
                    part.watch.drop()

    def _unwatched(self, one: Followed) -> None:
        """A backup of which the engine did not say what it had queued, or that nobody can follow."""
        if one.watched is None:
            one.watched = self._watch(one)
            for part in one.watched:
                part.watch.finish()
        if not one.watched:
            one.record = self._record(one)
            self._by_call(one.record)

    def _begin(self, copy: Copy) -> Followed | None:
        try:
            if not self._can(copy):
                return None
            one = Followed(copy, written(copy), self._judged)
            if copy.op is Op.LOAD:
                one.watched = self._watch(one)
        except Exception:  # noqa: BLE001 - it will be met again, and told then
            return None
        return one if one.watched is None or one.watched else None

    def _can(self, copy: Copy) -> bool:
        """Whether whole pages of what lies on a device move, in the order of their layers."""
        if copy.spans is not None or (copy.op is not Op.LOAD and copy.op is not Op.BACKUP):
            return False
        for view in copy.mirror.device.values():
            if view.device == "cpu":
                return False
        layers = copy.model_layers
        if self._ascending.get(id(layers)) is not layers:
            if not ascends(layers):
                return False
            if len(self._ascending) >= _MOST_KNOWN:
                self._ascending.clear()
            self._ascending[id(layers)] = layers
        return True

    def _watch(self, one: Followed) -> list[Part]:
        """Watches of all components; none at all if one of them cannot be followed."""
        copy, watched = one.copy, list[Part]()
        try:
            for component, view in copy.mirror.device.items():
                parts = parts_of(self._watcher, copy, None, one.writes, component, view)
                if not parts:
                    let_go(watched)
                    return []
                watched += parts
        except Exception:
            let_go(watched)
            raise
        return watched

    def _judged(self, one: Followed) -> list[Event]:
        """On the bus's thread."""
        record = one.record or self._record(one)
        record.time_ns, record.duration_us = one.time_ns, one.duration_us
        record.status, record.skip = one.status, record.skip or one.skip or misfit(one.copy)
        return self._judge(record)

    def _record(self, one: Followed) -> CopyRecord:
        watched = one.watched or []
        return CopyRecord(
            one.copy,
            self._judge,
            np.ones(len(one.copy.host_pages), np.bool_),
            one.writes,
            watched=watched,
            is_followed=bool(watched),
        )


def written(copy: Copy) -> Pages:
    """How often each host page had begun to be written, this copy included: int64 [pages].

    Raises:
        IndexError: There is no such page.
    """
    writes, pages = copy.mirror.writes, copy.host_pages
    count: Pages = writes[pages]
    if copy.op is Op.BACKUP or copy.tiers[1] is Tier.HOST:
        count += _ONE
        writes[pages] = count
    return count


def misfit(copy: Copy) -> SkipReason | None:
    """Why a copy's pages have no tiles to look at; None where every one lies inside its tensors."""
    if copy.fits:
        return None
    unknown = (copy.host_pages < 0).any()  # nobody could tell which pages they are
    return SkipReason.UNREADABLE if unknown else SkipReason.UNWITNESSED


def ascends(layers: Sequence[int]) -> bool:
    """Whether layers come in the order in which they are copied."""
    return list(layers) == sorted(layers)
