"""Notes on the engine's prefix cache: for which tokens pages were inserted, and for which found."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.attach.hicache_books import Books, moments
from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.checks.identity import prefix_digests
from hicache_dbg.tracer.checks.ordering_clocks import ActorId
from hicache_dbg.tracer.checks.violation import Violation

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController, Match
    from hicache_dbg.pools.radix import InsertResult
    from hicache_dbg.pools.radix_types import Tokens
    from hicache_dbg.pools.ticket import LoadTicket

__all__ = ["KeyNotes", "pages_of"]


class KeyNotes:
    """Notes which tokens a reader asks for, and checks what its pages were written for."""

    def __init__(self, notes: Notes, books: Callable[[], Books]) -> None:
        self._notes = notes
        self._books = books
        #: Number of host-only pages of each match, by its identity.
        self._on_host: dict[int, int] = {}

    def around_match(self, original: Callable[..., "Match"]) -> Callable[..., "Match"]:
        """Check that found pages were written for these tokens, and that misses are real."""

        def match(controller: "HiCacheController", tokens: "Tokens") -> "Match":
            begun = next(moments)
            found = original(controller, tokens)
            self._on_host[id(found)] = found.host_pages.size
            with self._notes.at("lifetimes/match"):
                if found.pages:
                    self._asked(controller, tokens, found)
                self._missed(controller, tokens, found, begun)
            return found

        return match

    def around_load_back(
        self, original: Callable[..., "LoadTicket"]
    ) -> Callable[..., "LoadTicket"]:
        """Count a request for host pages that started no load."""

        def load_back(
            controller: "HiCacheController", match: "Match", owner: int = 0
        ) -> "LoadTicket":
            ticket = original(controller, match, owner)
            if self._on_host.pop(id(match), 0) and not ticket.loads:
                with self._notes.at("lifetimes/load_back"):
                    by, host = access("load_back"), controller.allocators["host"]
                    pool = "+".join(controller.group.device)
                    self._notes.take(lambda: self._books().tier(host).use.asked(by), pool, by=by)
            return ticket

        return load_back

    def _asked(self, controller: "HiCacheController", tokens: "Tokens", found: "Match") -> None:
        pages, by = pages_of(controller, tokens, found.pages), access("match")
        cut, parts = found.device_pages.size, []
        for name, ids, span in (
            ("device", found.device_pages, slice(None, cut)),
            ("host", found.host_pages, slice(cut, None)),
        ):
            allocator = controller.allocators[name]
            parts.append((allocator, ids.copy(), allocator.generation(ids).astype(np.int64), span))

        actor = ActorId(threading.get_ident()) if self._notes.ordered else None

        def turn() -> list[Violation]:
            books, digests = self._books(), prefix_digests(pages)
            # The match held the cache's lock, and so did whoever brought the pages.
            books.order.met(actor, *(allocator for allocator, *_ in parts))
            return [
                violation
                for allocator, ids, generations, span in parts
                for violation in books.asked(allocator, ids, generations, digests[span], by)
            ]

        self._notes.take(turn, "+".join(controller.group.device), by=by, about=found)

    def _missed(
        self, controller: "HiCacheController", tokens: "Tokens", found: "Match", begun: int
    ) -> None:
        """Check that the first page that was not found is not cached under another key."""
        pages = pages_of(controller, tokens, found.pages + 1)
        if len(pages) == found.pages:
            return
        by, allocators = access("match"), tuple(controller.allocators.values())

        def turn() -> list[Violation]:
            books, digest = self._books(), int(prefix_digests(pages)[-1])
            return [
                violation
                for allocator in allocators
                for violation in books.missed(allocator, digest, begun, by)
            ]

        self._notes.take(turn, "+".join(controller.group.device), by=by, about=found)

    def around_insert(
        self, original: Callable[..., "InsertResult"]
    ) -> Callable[..., "InsertResult"]:
        """Note which tokens the pages hold, and when the cache takes them over."""

        def insert(
            controller: "HiCacheController", tokens: "Tokens", device_pages: Ids
        ) -> "InsertResult":
            ids: Ids | None = None
            with self._notes.at("lifetimes/insert"):
                ids = np.array(device_pages, np.int64).reshape(-1)
                self._said(controller, tokens, ids)
            result = original(controller, tokens, device_pages)
            if ids is not None:
                with self._notes.at("lifetimes/insert"):
                    self._taken(controller, ids)
            return result

        return insert

    def _said(self, controller: "HiCacheController", tokens: "Tokens", ids: Ids) -> None:
        pages, by = pages_of(controller, tokens, ids.size), access("insert")
        device = controller.allocators["device"]
        if len(pages) != ids.size or not ((ids >= 0) & (ids < device.pages)).all():
            return  # the engine will refuse it
        generations = device.generation(ids).astype(np.int64)

        def turn() -> list[Violation]:
            books, digests = self._books(), prefix_digests(pages)
            found = books.asked(device, ids, generations, digests, by)
            books.tier(device).identity.say(ids, generations, digests)
            return found

        about = (device.name, ids)
        self._notes.take(turn, "+".join(controller.group.device), by=by, about=about)

    def _taken(self, controller: "HiCacheController", ids: Ids) -> None:
        """Note that from now on the cache offers these pages, or has freed them as duplicates."""
        device, moment = controller.allocators["device"], next(moments)

        def turn() -> list[Violation]:
            self._books().tier(device).identity.cached(ids, moment)
            return []

        self._notes.take(turn)


def pages_of(
    controller: "HiCacheController", tokens: "Tokens", count: int | None = None
) -> list[bytes]:
    """Return the tokens of the first ``count`` whole pages, as the int32 bytes used in keys."""
    raw = tokens if isinstance(tokens, bytes) else np.asarray(tokens).astype("<i4").tobytes()
    width = 4 * controller.group.page_tokens
    return [raw[start : start + width] for start in range(0, len(raw) - width + 1, width)][:count]
