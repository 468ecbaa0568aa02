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
from hicache_dbg.tracer.attach.sglang.open_copies import OpenCopies, within
from hicache_dbg.tracer.attach.sglang.registry import Allocations, Registry
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.checks.ownership import Ownership
from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.events import Tier

__all__ = ["Owners"]

Function = Callable[..., Any]


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
    _inside: _Inside = field(default_factory=_Inside)
    _notes: Notes | None = None
    copies: OpenCopies = field(init=False)

    def __post_init__(self) -> None:
        self.copies = OpenCopies(
            self.registry, self.say, self._note, self._book, self._allocator_of
        )

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

    # -- allocators -----------------------------------------------------------------------------

    def _given(self, owner: Any, indices: Any) -> None:
        slots = slots_of(indices)
        if slots is None:
            return
        source, name, tier = self._who(owner)
        self.copies.settle()
        by, device = access("alloc"), tier == Tier.DEVICE.value

        def turn() -> list[Violation]:
            pages = within(given_pages(slots, source.page, device=device), source.pages)
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
        self.copies.settle()
        by, page = access("free"), 1 if pages else source.page

        def turn() -> list[Violation]:
            book, named = self._book(source, tier), taken_pages(slots, page, device=device)
            found = book.free(within(named.pages, source.pages), by, refused=refused)
            if not refused:
                book.forget(within(named.partly, source.pages))
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
        self.copies.forget(source)
        return []

    def _start_over(self) -> None:
        self._books.clear()
        self.copies.forget()
