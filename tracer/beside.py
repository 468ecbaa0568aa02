"""The fast path of the probe: copies whose digests the device takes by itself."""

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

_ONE = np.array(1)  # numpy would convert a plain int at every addition
#: Most layer tuples remembered as ascending.
_MOST_KNOWN = 256


class Beside:
    """Hands copies over to the device and the bus: the host's thread only begins and ends them.

    Copies are begun once the engine has queued some of them, and digests are enqueued once it has
    queued all of them. The host work for this then overlaps with the transfer.

    Args:
        watcher: follows operations on the device.
        bus: where records go.
        errors: counts failures of the tracer itself.
        by_call: takes the digests of a copy that could not be followed.
        judge: turns a record into events, on the bus's thread.
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
        """Begin to follow ``copies``; return None if a device cannot follow every one of them.

        For a load this is final: digests by call must be taken before the engine opens its last
        gate. The reason for a refusal is not kept; the caller finds it by trying copy by copy.
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
        """Enqueue the digests on ``stream``, which has all copies but not yet their final mark."""
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
        """Finish the copies: the call is over, and the operation still owns the pages."""
        now = time.time_ns()
        for one in followed:
            one.duration_us, one.status = duration_us, status
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
            one.time_ns = now  # last: the mark of a copy that was handed in
            if not self._bus.push(one):
                with self._errors.at("digest/drop"):
                    one.drop()

    def _unwatched(self, one: Followed) -> None:
        """Digest a backup whose queueing was not reported, or that no device can follow."""
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
        except Exception:  # noqa: BLE001 - the slow path meets the same error and reports it
            return None
        return one if one.watched is None or one.watched else None

    def _can(self, copy: Copy) -> bool:
        """Return whether ``copy`` moves whole pages of a device pool, in ascending layer order."""
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
        """Watch all components of a copy.

        Return an empty list if one of them cannot be followed.
        """
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
        """Judge a copy, on the bus's thread."""
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
    """Return how often writing each host page was begun, this copy included: int64 ``[pages]``.

    Raises:
        IndexError: a page does not exist.
    """
    writes, pages = copy.mirror.writes, copy.host_pages
    count: Pages = writes[pages]
    if copy.op is Op.BACKUP or copy.tiers[1] is Tier.HOST:
        count += _ONE
        writes[pages] = count
    return count


def misfit(copy: Copy) -> SkipReason | None:
    """Return why a copy's pages have no tiles to examine; None if all lie within their tensors."""
    if copy.fits:
        return None
    unknown = (copy.host_pages < 0).any()  # the attachment could not read the page ids
    return SkipReason.UNREADABLE if unknown else SkipReason.UNWITNESSED


def ascends(layers: Sequence[int]) -> bool:
    """Return whether the layers are in ascending order, in which they are copied."""
    return list(layers) == sorted(layers)
