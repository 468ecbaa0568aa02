"""Who has which page, in which life, and who is still reading or writing it.

Pure bookkeeping on ints: no engine, no tensor, no clock. Every call takes all pages of one action
at once and returns what it breaks, so a page costs a few array operations and no Python of its own.
A page whose hand-out was not seen (tracing began later) is taken as it comes: whatever is done
to it is believed, until it is handed out or freed once.
"""

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.checks.ownership_rules import (
    BELOW_ZERO,
    CLASH,
    FREED_OPEN,
    FREED_TWICE,
    HANDED_OPEN,
    HANDED_TWICE,
    LEAKED,
    NAMED_TWICE,
    OPENED_FREE,
    STALE,
    UNBALANCED,
    Rule,
)
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["CHECK", "Ownership", "Pages"]

CHECK = "ownership"

Pages = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


#: What is known of a page. Plain ints: numpy asks an enum for a dozen attributes at each comparison.
UNKNOWN, FREE, TAKEN = 0, 1, 2
_ONE_FREE = bytes([FREE])


class Ownership:
    """The pages ``0 .. pages - 1`` of one tier.

    ``refused`` says that the system itself turned the call down: what it breaks is reported, and
    the pages stay as they were.
    """

    def __init__(self, tier: str, pages: int) -> None:
        self.tier = tier
        self._state = np.zeros(pages, np.uint8)
        self._generation = np.zeros(pages, np.int64)
        self._owner = np.zeros(pages, np.int64)
        self._holds = np.zeros(pages, np.int32)  # acquired and not released
        self._reading = np.zeros(pages, np.int32)  # copies that read the page
        self._writing = np.zeros(pages, np.int32)  # copies that write it
        self._allocated = np.full(pages, None, object)
        self._opened = np.full(pages, None, object)
        self._freed = np.full(pages, None, object)
        self._available: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, less the accesses that pages share."""
        arrays = vars(self).values()
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    # -- lives ----------------------------------------------------------------------------------

    def alloc(self, pages: Pages, generations: Pages, owner: int, by: Access) -> list[Violation]:
        """``pages`` were handed out to ``owner``, into these generations."""
        taken = self._state[pages] == TAKEN
        found = self._broken(pages, taken, HANDED_TWICE, by, self._allocated)
        found += self._broken(pages, self._open(pages), HANDED_OPEN, by, self._opened)
        self._state[pages] = TAKEN
        self._generation[pages] = generations
        self._owner[pages] = owner
        self._holds[pages] = 0
        self._allocated[pages] = by
        return found

    def free(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """``pages`` were given back."""
        found = []
        if _repeats(pages):
            repeated = np.ones(len(pages), np.bool_)
            repeated[np.unique(pages, return_index=True)[1]] = False
            found += self._broken(pages, repeated, NAMED_TWICE, by, self._allocated)
        found += self._broken(pages, self._state[pages] == FREE, FREED_TWICE, by, self._freed)
        found += self._broken(pages, self._open(pages), FREED_OPEN, by, self._opened)
        if not refused:
            self._state[pages] = FREE
            self._holds[pages] = 0
            self._freed[pages] = by
        return found

    def forget(self, pages: Pages) -> None:
        """Something was done to ``pages`` that is not known; from here on they are as if never seen."""
        self._state[pages] = UNKNOWN
        self._holds[pages] = 0

    def balance(self, available: int, change: int, by: Access) -> list[Violation]:
        """The system counts ``available`` free pages after an action that moved ``change`` of them."""
        before, self._available = self._available, available
        if before is None or before + change == available:
            return []
        return [
            Violation(
                UNBALANCED.cls,
                CHECK,
                self.tier,
                UNBALANCED.words,
                (),
                by,
                expected=f"{before + change} free pages",
                got=f"{available}",
                advice=UNBALANCED.advice,
            )
        ]

    # -- holds and copies -----------------------------------------------------------------------

    def acquire(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """One more holder of each page."""
        found = self._free_already(pages, by)
        if not refused:
            _more(self._holds, pages, repeats=_repeats(pages))
            self._opened[pages] = by
        return found

    def release(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """One holder less."""
        return self._let_go(pages, by, repeats=_repeats(pages), refused=refused)

    def open(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """A copy that reads, or ``writes``, the pages was submitted; it may be one more holder too."""
        found = self._free_already(pages, by)
        if _nonzero(self._writing[pages]) or (writes and _nonzero(self._reading[pages])):
            others = self._writing[pages] > 0
            if writes:
                others |= self._reading[pages] > 0
            found += self._broken(pages, others, CLASH, by, self._opened)
        repeats = _repeats(pages)
        _more(self._writing if writes else self._reading, pages, repeats=repeats)
        if holds:
            _more(self._holds, pages, repeats=repeats)
        self._opened[pages] = by
        return found

    def close(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """The copy is over, one way or the other, and was the holder that ``open`` made it."""
        counts, repeats = self._writing if writes else self._reading, _repeats(pages)
        below = counts[pages] <= 0
        found = self._broken(pages, below, BELOW_ZERO, by, self._opened)
        _fewer(counts, pages, plain=not (found or repeats))
        if holds:
            found += self._let_go(pages, by, repeats=repeats)
        return found

    def read(self, pages: Pages, generations: Pages, by: Access) -> list[Violation]:
        """The bytes are used now, by somebody who was promised these generations."""
        state, lives = self._state[pages], self._generation[pages]
        if _ONE_FREE not in state.tobytes() and lives.tobytes() == generations.tobytes():
            return []  # as nearly always
        other = lives != generations
        found = self._broken(pages, (state == FREE) & ~other, OPENED_FREE, by, self._freed)
        stale = (state != UNKNOWN) & other
        if _some(stale):
            at = int(stale.argmax())
            found += self._broken(
                pages,
                stale,
                STALE,
                by,
                self._allocated,
                expected=f"generation {generations[at]}",
                got=f"generation {lives[at]}, owner {self._owner[pages[at]]}",
            )
        return found

    def _free_already(self, pages: Pages, by: Access) -> list[Violation]:
        state = self._state[pages]
        if _ONE_FREE not in state.tobytes():
            return []
        return self._broken(pages, state == FREE, OPENED_FREE, by, self._freed)

    def _let_go(
        self, pages: Pages, by: Access, *, repeats: bool, refused: bool = False
    ) -> list[Violation]:
        """One holder less; pages that are released more often than they are held are told."""
        wanted: Pages | int = 1
        if repeats:
            wanted = np.bincount(pages, minlength=len(self._holds))[pages]
        below = self._holds[pages] < wanted
        bad = _some(below)
        if not refused:
            _fewer(self._holds, pages, plain=not (bad or repeats))
        if not bad:
            return []
        known = below & (self._state[pages] != UNKNOWN)
        return self._broken(pages, known, BELOW_ZERO, by, self._opened)

    def idle(self, by: Access) -> list[Violation]:
        """Nothing is under way any more: no page may still be held or open."""
        held = np.flatnonzero(self._holds + self._reading + self._writing)
        held = held[self._state[held] != UNKNOWN]
        return self._broken(held, np.ones(len(held), np.bool_), LEAKED, by, self._opened)

    def used(self, wanted: int, by: Access) -> list[Violation]:
        """At rest exactly ``wanted`` pages should be in use; says so where the books count more."""
        if (self._state == UNKNOWN).any():
            if self._available is None:
                return []
            got = len(self._state) - self._available
        else:
            got = int((self._state == TAKEN).sum())
        if got == wanted:
            return []
        return [
            Violation(
                LEAKED.cls,
                CHECK,
                self.tier,
                "pages are in use that nobody has",
                (),
                by,
                expected=f"{wanted} pages in use",
                got=f"{got}",
                advice=LEAKED.advice,
            )
        ]

    def allocated(self, page: int) -> Access | None:
        """Where ``page`` was handed out last; None if that was not seen."""
        access: Access | None = self._allocated[page]
        return access

    def alive(self, pages: Pages, generations: Pages) -> Flags:
        """Which pages are in use, and still in these lives."""
        same: Flags = (self._state[pages] == TAKEN) & (self._generation[pages] == generations)
        return same

    def _open(self, pages: Pages) -> Flags:
        busy: Flags = (self._holds[pages] + self._reading[pages] + self._writing[pages]) > 0
        return busy

    def _broken(
        self,
        pages: Pages,
        wrong: Flags,
        rule: Rule,
        by: Access,
        previous: npt.NDArray[np.object_],
        *,
        expected: str = "",
        got: str = "",
    ) -> list[Violation]:
        if not _some(wrong):
            return []
        bad = tuple(dict.fromkeys(pages[wrong].tolist()))
        return [
            Violation(
                rule.cls,
                CHECK,
                self.tier,
                rule.words,
                bad,
                by,
                previous.item(bad[0]),
                self._allocated.item(bad[0]),
                expected=expected,
                got=got,
                advice=rule.advice,
            )
        ]


def _repeats(pages: Pages) -> bool:
    return len(set(pages.tolist())) < len(pages)


def _some(flags: Flags) -> bool:
    """``flags.any()``, at a tenth of its cost for the few pages of a copy."""
    return b"\x01" in flags.tobytes()


def _nonzero(counts: npt.NDArray[np.int32]) -> bool:
    """Whether one is not 0, at a fraction of the cost of ``any()`` for the few pages of a copy."""
    return bool(counts.tobytes().strip(b"\0"))


def _more(counts: npt.NDArray[np.int32], pages: Pages, *, repeats: bool) -> None:
    """Add 1 for each time a page is named."""
    if repeats:
        np.add.at(counts, pages, 1)
    else:
        counts[pages] += 1


def _fewer(counts: npt.NDArray[np.int32], pages: Pages, *, plain: bool) -> None:
    """Take 1 away for each time a page is named, never below zero.

    ``plain``: no page is named twice, and none is at zero.
    """
    if plain:
        counts[pages] -= 1
    else:
        np.subtract.at(counts, pages, 1)
        counts[pages] = np.maximum(counts[pages], 0)
