"""Who has which page of SGLang's allocators, and which copies have it open."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.attach.sglang.allocators import given_pages, slots_of, taken_pages
from hicache_dbg.tracer.attach.sglang.classes import is_host_pool, ours
from hicache_dbg.tracer.attach.sglang.registry import Allocations, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import Op, Tier
from hicache_dbg.tracer.ledger import Pages
from hicache_dbg.tracer.mirror import Copy

__all__ = ["OpenCopy", "Owners"]

Function = Callable[..., Any]


@dataclass(slots=True, eq=False)
class OpenCopy:
    """A copy between its submission and the event that says it is over; ``ends`` are its pages."""

    ends: tuple[tuple[Allocations, str, Pages, bool], ...]
    pool: str
    op: str
    by: Access
    over: Any = None


class _Inside(threading.local):
    """The allocators that this thread is in a method of."""

    def __init__(self) -> None:
        self.owners: set[int] = set()


@dataclass(slots=True)
class Owners:
    """Notes what allocators do, in order, for the books on the bus's thread.

    Device allocators are followed where their indices are on a CPU. ``given`` is told of every
    allocation of a host pool.
    """

    say: Say
    registry: Registry
    given: Callable[[Any, Any], None]
    _books: "weakref.WeakKeyDictionary[Allocations, Ownership]" = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _devices: dict[int, "weakref.ref[Any]"] = field(default_factory=dict)
    _open: list[OpenCopy] = field(default_factory=list)
    _inside: _Inside = field(default_factory=_Inside)
    _notes: Notes | None = None

    # -- wrappers -------------------------------------------------------------------------------

    def giving(self, original: Function) -> Function:
        """Around a method that gives pages away."""

        @wraps(original)
        def alloc(owner: Any, *args: Any, **kwargs: Any) -> Any:
            with self._alone(owner) as alone:
                indices = original(owner, *args, **kwargs)
                if alone and indices is not None:
                    if is_host_pool(owner):
                        self.given(owner, indices)
                    with self.say.errors("attach/alloc"):
                        self._given(owner, indices)
            return indices

        return ours(alloc)

    def taking(self, original: Function, *, pages: bool = False) -> Function:
        """Around a method that takes pages back: indices, or with ``pages`` page ids."""

        @wraps(original)
        def free(owner: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
            with self._alone(owner) as alone:
                refused = True
                try:
                    result = original(owner, indices, *args, **kwargs)
                    refused = False
                finally:
                    if alone:
                        with self.say.errors("attach/free"):
                            self._taken(owner, indices, pages=pages, refused=refused)
            return result

        return ours(free)

    def deferring(self, original: Function) -> Function:
        """Around a method that carries out what was noted before."""

        @wraps(original)
        def deferred(owner: Any, *args: Any, **kwargs: Any) -> Any:
            with self._alone(owner):
                return original(owner, *args, **kwargs)

        return ours(deferred)

    def resetting(self, original: Function) -> Function:
        """Around a method after which every page is as if never seen."""

        @wraps(original)
        def reset(owner: Any, *args: Any, **kwargs: Any) -> Any:
            with self._alone(owner):
                result = original(owner, *args, **kwargs)
                source = self.registry.known_allocations(owner)
                if source is not None:
                    with self.say.errors("attach/clear"):
                        self._note(lambda: self._forget(source), "")
            return result

        return ours(reset)

    # -- copies ---------------------------------------------------------------------------------

    def opened(self, copy: Copy, device_pool: Any) -> OpenCopy:
        """A copy was submitted: both ends are open until its event."""
        self.settle()
        record = self.registry.by_mirror(copy.mirror)
        sources = [] if record.geometry and record.geometry.lives else record.sources
        loads = copy.op is Op.LOAD
        ends = [(source, Tier.HOST.value, copy.host_pages, not loads) for source in sources]
        allocator = self._allocator_of(device_pool)
        if allocator is not None:
            source = self.registry.allocations(allocator)
            ends.append((source, Tier.DEVICE.value, copy.device_pages, loads))
        by = access(f"{copy.op} {copy.op_id}")
        opened = OpenCopy(tuple(ends), copy.mirror.pool, copy.op.value, by)

        def turn() -> list[Violation]:
            return [
                item
                for source, tier, pages, writes in opened.ends
                for item in self._book(source, tier).open(_within(source, pages), by, writes=writes)
            ]

        self._note(turn, opened.pool, opened.op)
        return opened

    def submitted(self, copies: list[OpenCopy], over: Any) -> None:
        """The operation that these copies belong to ends with the event ``over``; None: it ended."""
        for copy in copies:
            copy.over = over
            if over is None:
                self._close(copy)
            else:
                self._open.append(copy)

    def settle(self) -> None:
        """Close the copies whose event has come."""
        for copy in [copy for copy in self._open if copy.over.query()]:
            self._open.remove(copy)
            self._close(copy)

    def _close(self, copy: OpenCopy) -> None:
        def turn() -> list[Violation]:
            for source, tier, pages, writes in copy.ends:
                self._book(source, tier).close(_within(source, pages), copy.by, writes=writes)
            return []

        self._note(turn, copy.pool, copy.op)

    # -- allocators -----------------------------------------------------------------------------

    def _given(self, owner: Any, indices: Any) -> None:
        slots = slots_of(indices)
        if slots is None:
            return
        source, name, tier = self._who(owner)
        self.settle()
        by, device = access("alloc"), tier == Tier.DEVICE.value

        def turn() -> list[Violation]:
            pages = _within(source, given_pages(slots, source.page, device=device))
            return self._book(source, tier).alloc(pages, np.zeros(len(pages), np.int64), 0, by)

        self._note(turn, name)

    def _taken(self, owner: Any, indices: Any, *, pages: bool, refused: bool) -> None:
        device = not is_host_pool(owner)
        if not device and hasattr(indices, "cpu"):
            indices = indices.cpu()  # as the pool itself has just done
        slots = slots_of(indices)
        if slots is None:
            return
        source, name, tier = self._who(owner)
        self.settle()
        by, page = access("free"), 1 if pages else source.page

        def turn() -> list[Violation]:
            book, named = self._book(source, tier), taken_pages(slots, page, device=device)
            found = book.free(_within(source, named.pages), by, refused=refused)
            if not refused:
                book.forget(_within(source, named.partly))
            return found

        self._note(turn, name)

    def _who(self, owner: Any) -> tuple[Allocations, str, str]:
        """An allocator's pages, the pool's name and the tier."""
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
        """Under the allocator's own lock; whether this is not part of another call of it."""
        inside = self._inside.owners
        if id(owner) in inside or not self.say.on():
            yield False
            return
        inside.add(id(owner))
        try:
            with getattr(owner, "lock", None) or nullcontext():
                yield True
        finally:
            inside.discard(id(owner))

    def _note(self, turn: Callable[[], list[Violation]], pool: str, op: str = "") -> None:
        session = self.say.session()
        if session is None or not session.settings.traces(pool):
            return
        if self._notes is None:
            self._notes = Notes(session, self._start_over)
        self._notes.take(turn, pool, op)

    # -- books, on the bus's thread -------------------------------------------------------------

    def _book(self, source: Allocations, tier: str) -> Ownership:
        book = self._books.get(source)
        if book is None:
            book = self._books[source] = Ownership(tier, source.pages)
        return book

    def _forget(self, source: Allocations) -> list[Violation]:
        self._books.pop(source, None)
        return []

    def _start_over(self) -> None:
        self._books.clear()


def _within(source: Allocations, pages: Pages) -> Pages:
    """Those that the allocator has; what lies outside is another check's business."""
    inside: Pages = pages[(pages >= 0) & (pages < source.pages)]
    return inside
