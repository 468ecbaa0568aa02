"""What a rank of ``hicache_dbg.pools`` states for a join with the others: hits, and its tiles.

A request is identified by the digest of its tokens, which all ranks have, and a tile by the digest
of the tokens up to the end of its page. Statements are made only if there are several ranks, except
for the keys of a store, which other processes may share.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from hicache_dbg.pools.indices import Ids
from hicache_dbg.tracer.attach.hicache_key_statements import KeyStatements
from hicache_dbg.tracer.attach.hicache_keys import pages_of
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.checks.identity import prefix_digests
from hicache_dbg.tracer.events import Finding, Op, Topic
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.probe import CopyRecord, Point
from hicache_dbg.tracer.session import Session

if TYPE_CHECKING:
    from hicache_dbg.pools.controller import HiCacheController, Match
    from hicache_dbg.pools.host import Mirror
    from hicache_dbg.pools.radix import InsertResult
    from hicache_dbg.pools.radix_types import Tokens

__all__ = ["RankStatements"]


class RankStatements:
    """Wraps a controller's lookups and insertions, and observes each judged backup.

    Two caches of a process may have pools of the same name; each states its own tiles, the second
    under a separate shard. ``attach`` and ``detach`` are a symmetric, idempotent pair.

    Args:
        session: publishes the statements.
        views_of: returns a mirror's views as the session's copies have them.
    """

    def __init__(self, session: Session, views_of: Callable[["Mirror"], MirrorViews]) -> None:
        self._session = session
        self._views_of = views_of
        self._numbers: WeakKeyDictionary[MirrorViews, int] = WeakKeyDictionary()
        self._patches = Patches()
        self._keys = KeyStatements(session)
        #: By mirror and device page: the digest of the tokens it was inserted for, its position among
        #: their pages, and the number of insertions lost by then. On the bus's thread only.
        self._requests: WeakKeyDictionary[MirrorViews, dict[int, tuple[int, int, int]]] = (
            WeakKeyDictionary()
        )
        self._lost = 0

    def attach(self, controller: type) -> None:
        """Wrap what is not wrapped yet; most of it only if there are other ranks."""
        self._keys.attach()
        if self._session.settings.ranks > 1:
            self._patches.replace(controller, "match", self._around_match)
            self._patches.replace(controller, "insert", self._around_insert)
            if self._backed_up not in self._session.on_judged:
                self._session.on_judged.append(self._backed_up)

    def detach(self) -> None:
        """Restore the engine's own methods."""
        self._keys.detach()
        self._patches.undo()
        if self._backed_up in self._session.on_judged:
            self._session.on_judged.remove(self._backed_up)

    def built(self, mirrors: Iterable[MirrorViews]) -> None:
        """Number a new cache; ranks create theirs in the same order, so the numbers agree."""
        for mirror in mirrors:
            self._number(mirror)

    def _around_match(self, original: Callable[..., "Match"]) -> Callable[..., "Match"]:
        def match(controller: "HiCacheController", tokens: "Tokens") -> "Match":
            found = original(controller, tokens)
            with self._session.errors.at("ranks/match"):
                digests = prefix_digests(pages_of(controller, tokens))
                request = f"{int(digests[-1]):016x}" if digests.size else "short"
                self._session.state(Topic.HIT_PAGES, (str(found.pages),), request=request)
            return found

        return match

    def _around_insert(
        self, original: Callable[..., "InsertResult"]
    ) -> Callable[..., "InsertResult"]:
        def insert(
            controller: "HiCacheController", tokens: "Tokens", device_pages: Ids
        ) -> "InsertResult":
            with self._session.errors.at("ranks/insert"):
                pages = np.array(device_pages, np.int64).tolist()
                raw, lost = pages_of(controller, tokens), self._lost
                mirrors = tuple(map(self._views_of, controller.group.mirrors))
                if not self._session.check(lambda: self._inserted(mirrors, pages, raw, lost)):
                    self._lost += 1  # its pages may still be recorded for other tokens
            return original(controller, tokens, device_pages)

        return insert

    def _number(self, mirror: MirrorViews) -> int:
        """Return the number, from 1 on, of the mirror's cache among live ones with such a pool."""
        known = self._numbers.get(mirror)
        if known is None:
            taken = {
                number for other, number in list(self._numbers.items()) if other.pool == mirror.pool
            }
            known = next(number for number in count(1) if number not in taken)
            self._numbers[mirror] = known
        return known

    def _inserted(
        self, mirrors: tuple[MirrorViews, ...], pages: list[int], raw: list[bytes], lost: int
    ) -> list[Finding]:
        named = {
            pages[at]: (digest, at, lost)
            for at, digest in enumerate(prefix_digests(raw).tolist()[: len(pages)])
        }
        for mirror in mirrors:
            self._requests.setdefault(mirror, {}).update(named)
        return []

    def _backed_up(self, record: CopyRecord) -> None:
        copy = record.copy
        if copy.op is not Op.BACKUP or record.status != "ok":
            return
        requests, number = self._requests.get(copy.mirror, {}), self._number(copy.mirror)
        for component in copy.mirror.device:
            digests = record.digests.get((Point.SOURCE_BEFORE, component))
            if digests is None:
                continue
            for column, page in enumerate(copy.device_pages[record.digested].tolist()):
                known = requests.get(page)
                if known is not None and known[2] == self._lost:
                    request, at, _ = known
                    self._session.state(
                        Topic.TILES,
                        [f"{digest:016x}" for digest in digests[:, column].tolist()],
                        time_ns=record.time_ns,
                        request=f"{request:016x}",
                        pool=copy.mirror.pool,
                        component=component,
                        shard="" if number == 1 else f"cache {number}",
                        page=at,
                        layers=copy.model_layers,
                    )
