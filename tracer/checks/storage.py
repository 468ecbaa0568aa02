"""Check that a store returns what it was given: its bytes, under their own key, or an honest miss.

Pure bookkeeping on digests and results, on the bus's thread.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.ledger import Digests

__all__ = ["CHECK", "Contents", "Fault", "Stored", "TierState", "of_failure", "of_other_bytes"]

CHECK = "storage"
#: Most pages whose digests are kept; older pages are checked by their record's own header.
MOST_PAGES = 1 << 17
#: Number of stored pages that must be looked up in vain before the tier counts as dead.
NEVER_PAGES = 8


class Fault(NamedTuple):
    """What is wrong with some pages of one operation, before it becomes a finding."""

    cls: FaultClass
    cause: str
    expected: str = ""
    got: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A page as it was when it was stored: the digests of its tokens and of its bytes.

    ``payload`` covers all bytes in the store's order, 0 if not taken. ``tiles`` maps (pool,
    component) to uint64 ``[layers]``: the digests from their backup, as far as seen. ``sample``
    covers only a few bytes, which tell whether a page was delivered at all. ``store`` identifies
    the store it went to.
    """

    tokens: int
    payload: int
    sample: int
    tiles: dict[tuple[str, str], Digests]
    store: object = None


class Contents:
    """The most recently stored pages, by content key."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most = most
        self._pages: OrderedDict[str, Stored] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._pages

    def keep(self, name: str, page: Stored) -> None:
        """Record a stored page."""
        self._pages[name] = page
        self._pages.move_to_end(name)
        if len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def drop(self, name: str) -> None:
        """Forget what was stored under ``name``."""
        self._pages.pop(name, None)

    def get(self, name: str) -> Stored | None:
        """Return what was stored under ``name``, if known."""
        return self._pages.get(name)


#: Fault class, meaning and advice for each failure state the store reports.
_OF_STATE: dict[str, tuple[FaultClass, str, str]] = {
    "missing": (
        FaultClass.STALE_INDEX,
        "the store's index has the page and its bytes are gone",
        "drop the index entry when a get fails; look for who else removes records",
    ),
    "short": (
        FaultClass.STORAGE_DAMAGE,
        "the record is truncated",
        "write beside and rename; look for a full disk or a writer that was killed",
    ),
    "damaged": (
        FaultClass.STORAGE_DAMAGE,
        "the record's bytes are not those that were stored",
        "look at the disk and at who else writes there",
    ),
    "foreign": (
        FaultClass.STORAGE_DAMAGE,
        "another writer's record lies under this name",
        "give each rank and writer names of its own",
    ),
    "miskeyed": (
        FaultClass.KEY_IDENTITY,
        "one key for two contents",
        "put everything that tells two pages apart into the key: all tokens before it, namespace, model, format",
    ),
    "failed": (
        FaultClass.DEAD_TIER,
        "the store reports an error",
        "look at the errno: space, rights, the mount, the service",
    ),
}


def of_failure(state: str, reason: str, errno: int, expected: str, got: str) -> Fault:
    """Return the fault for a page that the store failed to deliver."""
    cls, cause, advice = _OF_STATE[state]
    text = f"{cause}: {reason}" + (f" (errno {errno})" if errno else "")
    return Fault(cls, text, expected, got or (f"errno {errno}" if errno else state), advice)


def of_other_bytes(page: Stored | None, tokens: int, *, untouched: bool) -> Fault:
    """Explain why a page that was fetched as good does not hold what it should.

    Args:
        page: as it was stored, if known.
        tokens: digest of the tokens it was requested for.
        untouched: whether the host page still holds what it held before the fetch.
    """
    if page is not None and page.tokens != tokens:
        cls, cause, advice = _OF_STATE["miskeyed"]
        return Fault(cls, cause, f"tokens {tokens:016x}", f"{page.tokens:016x}", advice)
    if untouched:
        return Fault(
            FaultClass.FAILED_LOAD,
            "the host page holds what it held before: the fetch was reported as done and did not deliver",
            advice="look at the length and status of each get; never take a batch's status for a page's",
        )
    cls, cause, advice = _OF_STATE["damaged"]
    return Fault(cls, f"{cause}, and the store did not notice", advice=advice)


@dataclass(slots=True)
class TierState:
    """Whether a store ever answers."""

    fetched: int = 0
    unanswered: int = 0
    _told: set[str] = field(default_factory=set)

    def looked_up(self, known: int, found: int, evicted: int | None) -> Fault | None:
        """Record that ``known`` stored pages were looked up and ``found`` of them reported present.

        ``evicted`` is how many pages the store has evicted; None if it does not say.
        """
        self.fetched += found
        self.unanswered += known - found
        if self.fetched or evicted or self.unanswered < NEVER_PAGES or not self._first("never"):
            return None
        return Fault(
            FaultClass.DEAD_TIER,
            "the tier is written and never answers: pages that were stored are looked up and none is found",
            "a hit",
            f"{self.unanswered} misses of stored pages"
            + ("; the store does not say what it evicts" if evicted is None else ""),
            "compare the keys of put and get: same tokens, same chain, same namespace and model",
        )

    def fallback(self, why: str) -> Fault | None:
        """Report once that bytes take a slower path than configured."""
        if not why or not self._first("fallback"):
            return None
        return Fault(
            FaultClass.DEAD_TIER,
            f"a slow fallback is taken: {why}",
            "direct",
            "fallback",
            "mend what the fallback stands in for; a slow hit may cost more than computing again",
        )

    @staticmethod
    def gave_up(why: str) -> Fault:
        """Return the fault for a store that the engine stopped waiting for or asking."""
        return Fault(
            FaultClass.DEAD_TIER,
            f"the store does not answer: {why}",
            "an answer",
            why,
            "look at the store's service, mount and network; until it answers every page is a miss",
        )

    def _first(self, what: str) -> bool:
        new = what not in self._told
        self._told.add(what)
        return new
