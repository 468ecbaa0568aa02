"""Who owns which page of SGLang's allocators, and which copies have it open."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.attach.sglang.allocators import given_pages, taken_pages
from hicache_dbg.tracer.attach.sglang.arguments import argument
from hicache_dbg.tracer.attach.sglang.around import around
from hicache_dbg.tracer.attach.sglang.classes import is_host_pool, ours
from hicache_dbg.tracer.attach.sglang.late_desk import LateDesk
from hicache_dbg.tracer.attach.sglang.late_indices import MOST_BYTES, MOST_CALLS, Kept, LateIndices
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies, within
from hicache_dbg.tracer.attach.sglang.registry import Allocations, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.events import Tier

__all__ = ["Owners"]

Function = Callable[..., Any]
_REENTRANT = type(threading.RLock())
_NO_ROOM = RuntimeError(
    f"more than {MOST_CALLS} calls or {MOST_BYTES} B of indices wait for the device: skipped"
)


class _Inside(threading.local):
    """The allocators in whose methods this thread currently is."""

    def __init__(self) -> None:
        self.owners: set[int] = set()


@dataclass(slots=True)
class Owners:
    """Notes what allocators do, in order, for the books on the bus's thread.

    Indices on a GPU are read in order, once the device has reached them. ``given`` is called with
    every allocation of a host pool.
    """

    say: Say
    registry: Registry
    given: Callable[[Any, Any], None]
    _books: "weakref.WeakKeyDictionary[Allocations, Ownership]" = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _devices: dict[int, "weakref.ref[Any]"] = field(default_factory=dict)
    _inside: _Inside = field(default_factory=_Inside)
    _notes: Notes | None = None
    indices: LateIndices = field(default_factory=LateIndices)
    copies: OpenCopies = field(init=False)

    def __post_init__(self) -> None:
        self.copies = OpenCopies(
            self.registry, self.say, self._note, self._book, self._allocator_of
        )

    # -- wrappers -------------------------------------------------------------------------------

    def giving(self, original: Function) -> Function:
        """Wrap a method that allocates pages."""

        @wraps(original)
        def alloc(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if args else None
            with self._alone(owner) as alone:
                indices = original(*args, **kwargs)
                if alone and indices is not None:
                    with self.say.errors("attach/alloc", self._lose):
                        if is_host_pool(owner):
                            self.given(owner, indices)
                        self._given(owner, indices)
            return indices

        return ours(alloc)

    def striping(self, original: Function) -> Function:
        """Wrap ``alloc`` of a host pool that is interleaved over ranks.

        This rank's pages are its pool's.
        """

        def after(striped: Any, indices: Any, _: BaseException | None) -> None:
            if indices is not None:
                own = striped.placement.filter_local(indices, striped.shard_rank)
                self.given(striped.host_pool, own)

        def before(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            return args[0] if args and self.say.on() else None

        return around(self.say, "attach/alloc", original, before, after)

    def taking(self, original: Function, *, pages: bool = False) -> Function:
        """Wrap a method that frees pages: indices, or page ids with ``pages``."""
        indices_of = argument(original, "", at=1)

        @wraps(original)
        def free(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if args else None
            with self._alone(owner) as alone:
                if not alone:
                    return original(*args, **kwargs)
                refused = True
                try:
                    result = original(*args, **kwargs)
                    refused = False
                finally:
                    with self.say.errors("attach/free", self._lose):
                        indices = indices_of(args, kwargs)
                        self._taken(owner, indices, pages=pages, refused=refused)
            return result

        return ours(free)

    def deferring(self, original: Function) -> Function:
        """Wrap a method that executes frees noted before."""

        @wraps(original)
        def deferred(*args: Any, **kwargs: Any) -> Any:
            with self._alone(args[0] if args else None):
                return original(*args, **kwargs)

        return ours(deferred)

    def resetting(self, original: Function) -> Function:
        """Wrap a method after which all pages count as unknown."""

        @wraps(original)
        def reset(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if args else None
            with self._alone(owner):
                result = original(*args, **kwargs)
                source = self.registry.known_allocations(owner)
                if source is not None:
                    with self.say.errors("attach/clear", self._lose):
                        self._note(lambda: self._forget(source), "")
            return result

        return ours(reset)

    # -- allocators -----------------------------------------------------------------------------

    def _given(self, owner: Any, indices: Any) -> None:
        source, name, tier = self._who(owner)
        kept = self._keep(indices, name)
        if kept is None:
            return
        self.copies.settle()
        by, device = access("alloc"), tier == Tier.DEVICE.value

        def turn() -> list[Violation]:
            if kept.slots is None:
                return self._missed()
            pages = within(given_pages(kept.slots, source.page, device=device), source.pages)
            return self._book(source, tier).alloc(pages, np.zeros(len(pages), np.int64), 0, by)

        self._note(turn, name, kept=kept)

    def _taken(self, owner: Any, indices: Any, *, pages: bool, refused: bool) -> None:
        source, name, tier = self._who(owner)
        kept = self._keep(indices, name)
        if kept is None:
            return
        self.copies.settle()
        by, page = access("free"), 1 if pages else source.page

        def turn() -> list[Violation]:
            if kept.slots is None:
                return self._missed()
            named = taken_pages(kept.slots, page, device=tier == Tier.DEVICE.value)
            book = self._book(source, tier)
            found = book.free(within(named.pages, source.pages), by, refused=refused)
            if not refused:
                book.forget(within(named.partly, source.pages))
            return found

        self._note(turn, name, kept=kept)

    def _keep(self, indices: Any, pool: str) -> Kept | None:
        """Keep a copy of a call's indices; return None if the call is not followed."""
        session = self.say.session()
        if session is None or not session.settings.traces(pool):
            return None
        kept: Kept | None = Kept(lost=True)
        with self.say.errors("attach/indices"):
            kept = self.indices.keep(indices)
            if kept is not None and kept.lost:
                session.errors.record("attach/indices_skipped", _NO_ROOM)
        return kept

    def _who(self, owner: Any) -> tuple[Allocations, str, str]:
        """Return an allocator's pages, the pool's name and the tier."""
        source = self.registry.allocations(owner)
        if is_host_pool(owner):
            record = self.registry.of(owner)
            name = record.mirror.pool if record is not None else type(owner).__name__
            return source, name, Tier.HOST.value
        cache = getattr(owner, "_kvcache", None)
        if cache is not None:
            self._devices[id(cache)] = weakref.ref(owner)
        over = self.say.pools_over(cache) if cache is not None else set()
        return source, "+".join(sorted(over)) or type(owner).__name__, Tier.DEVICE.value

    def _allocator_of(self, device_pool: Any) -> Any:
        known = self._devices.get(id(device_pool))
        return known() if known is not None else None

    @contextmanager
    def _alone(self, owner: Any) -> Iterator[bool]:
        """Hold the allocator's own lock.

        Yield whether this is not nested in another of its calls.
        """
        inside = self._inside.owners
        if id(owner) in inside or not self.say.on():
            yield False
            return
        inside.add(id(owner))
        try:
            with _lock(owner):
                yield True
        finally:
            inside.discard(id(owner))

    def _note(
        self,
        turn: Callable[[], list[Violation]],
        pool: str,
        op: str = "",
        kept: Kept | None = None,
    ) -> None:
        session = self.say.session()
        if session is None or not session.settings.traces(pool):
            return
        if self._notes is None:
            self._notes = Notes(LateDesk(session, self.indices, self.say), self._start_over)
        self._notes.take(turn, pool, op, about=kept)

    def _lose(self) -> None:
        """Record that a call was not noted, so what is known of pages before it may be wrong."""
        if self._notes is not None:
            self._notes.lose()

    # -- books, on the bus's thread -------------------------------------------------------------

    def _book(self, source: Allocations, tier: str) -> Ownership:
        book = self._books.get(source)
        if book is None:
            book = self._books[source] = Ownership(tier, source.pages)
        return book

    def _forget(self, source: Allocations) -> list[Violation]:
        self._books.pop(source, None)
        self.copies.forget(source)
        return []

    def _missed(self) -> list[Violation]:
        """Start over: the pages of a call are unknown, so all pages are."""
        self._start_over()
        return []

    def _start_over(self) -> None:
        self._books.clear()
        self.copies.forget()


def _lock(owner: Any) -> AbstractContextManager[Any]:
    """Return an allocator's own lock if it is reentrant, else a null context."""
    try:
        lock = getattr(owner, "lock", None)
    except Exception:  # noqa: BLE001 - an allocator's attribute may raise anything
        lock = None
    return lock if isinstance(lock, _REENTRANT) else nullcontext()
