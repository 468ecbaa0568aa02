"""Who has which page, in which life, and who is still reading or writing it.

Pure bookkeeping on ints: no engine, no tensor, no clock. Every call takes all pages of one action
at once and returns what it breaks, so a page costs a few array operations and no Python of its own.
A page whose hand-out was not seen (tracing began later) is taken as it comes: whatever is done
to it is believed, until it is handed out or freed once.
"""

from dataclasses import replace

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
from hicache_dbg.tracer.checks.ownership_users import (
    HOLD,
    READ,
    WRITE,
    Users,
    repeats,
    times_named,
)
from hicache_dbg.tracer.checks.violation import Access, Violation

__all__ = ["CHECK", "Ownership", "Pages"]

CHECK = "ownership"

Pages = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


#: What is known of a page. Plain ints: numpy asks an enum for a dozen attributes at each comparison.
UNKNOWN, FREE, TAKEN = 0, 1, 2
_ONE_FREE, _ONE_TAKEN = bytes([FREE]), bytes([TAKEN])


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
        self._users = Users(pages)  # who acquired it and did not release it, and its open copies
        self._allocated = np.full(pages, None, object)
        self._opened = np.full(pages, None, object)
        self._freed = np.full(pages, None, object)
        self._available: int | None = None

    def __len__(self) -> int:
        return len(self._state)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, less the accesses that pages share."""
        parts = vars(self).values()
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray | Users))

    # -- lives ----------------------------------------------------------------------------------

    def alloc(self, pages: Pages, generations: Pages, owner: int, by: Access) -> list[Violation]:
        """``pages`` were handed out to ``owner``, into these generations."""
        found, state = [], self._state[pages]
        if _ONE_TAKEN in state.tobytes():
            found += self._broken(pages, state == TAKEN, HANDED_TWICE, by, self._allocated)
        if not self._users.none(pages):
            found += self._broken(pages, self._users.some(pages), HANDED_OPEN, by, self._opened)
            self._users.let_go(pages)
        self._state[pages] = TAKEN
        self._generation[pages] = generations
        self._owner[pages] = owner
        self._allocated[pages] = by
        return found

    def free(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """``pages`` were given back."""
        found = []
        if repeats(pages):
            repeated = np.ones(len(pages), np.bool_)
            repeated[np.unique(pages, return_index=True)[1]] = False
            found += self._broken(pages, repeated, NAMED_TWICE, by, self._allocated)
        state, idle = self._state[pages], self._users.none(pages)
        if _ONE_FREE in state.tobytes():
            found += self._broken(pages, state == FREE, FREED_TWICE, by, self._freed)
        if not idle:
            found += self._broken(pages, self._users.some(pages), FREED_OPEN, by, self._opened)
        if not refused:
            self._state[pages] = FREE
            if not idle:
                self._users.let_go(pages)
            self._freed[pages] = by
        return found

    def forget(self, pages: Pages) -> None:
        """Something was done to ``pages`` that is not known; from here on they are as if never seen."""
        self._state[pages] = UNKNOWN
        self._users.let_go(pages)

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
            self._one_more(pages, HOLD, alone=self._users.none(pages))
            self._opened[pages] = by
        return found

    def release(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """One holder less."""
        return self._let_go(pages, by, times=times_named(pages), refused=refused)

    def open(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """A copy that reads, or ``writes``, the pages was submitted; it may be one more holder too."""
        found, alone = self._free_already(pages, by), self._users.none(pages)
        if not alone:
            others = self._users.of(pages, WRITE) > 0
            if writes:
                others |= self._users.of(pages, READ) > 0
            found += self._broken(pages, others, CLASH, by, self._opened)
        unit = WRITE if writes else READ
        self._one_more(pages, unit + HOLD if holds else unit, alone=alone)
        self._opened[pages] = by
        return found

    def close(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """The copy is over, one way or the other, and was the holder that ``open`` made it."""
        unit, times = WRITE if writes else READ, times_named(pages)
        if times is None and self._users.only(pages, unit + HOLD if holds else unit):
            self._users.leave(pages)  # as nearly always
            return []
        below = self._users.of(pages, unit) <= 0
        found = self._broken(pages, below, BELOW_ZERO, by, self._opened)
        self._users.fewer(pages, unit, 1 if times is None else times)
        if holds:
            found += self._let_go(pages, by, times=times)
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

    def _one_more(self, pages: Pages, unit: int, *, alone: bool) -> None:
        if alone and not repeats(pages):
            self._users.first(pages, unit)  # as nearly always
        else:
            self._users.more(pages, unit)

    def _let_go(
        self, pages: Pages, by: Access, *, times: Pages | None, refused: bool = False
    ) -> list[Violation]:
        """One holder less; pages that are released more often than they are held are told.

        ``times``: how often each page is named, where one is named twice.
        """
        if times is None and not refused and self._users.only(pages, HOLD):
            self._users.leave(pages)
            return []
        wanted: Pages | int = 1 if times is None else times
        below = self._users.of(pages, HOLD) < wanted
        if not refused:
            self._users.fewer(pages, HOLD, wanted)
        if not _some(below):
            return []
        known = below & (self._state[pages] != UNKNOWN)
        return self._broken(pages, known, BELOW_ZERO, by, self._opened)

    def idle(self, by: Access) -> list[Violation]:
        """Nothing is under way any more: no page may still be held or open."""
        held = self._users.busy()
        held = held[self._state[held] != UNKNOWN]
        return self._broken(held, np.ones(len(held), np.bool_), LEAKED, by, self._opened)

    def used(self, wanted: int, by: Access) -> list[Violation]:
        """At rest exactly ``wanted`` pages should be in use; says so where the books count more."""
        if (self._state == UNKNOWN).any():
            if self._available is None:
                return []
            got = len(self) - self._available
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

    def located(self, found: list[Violation]) -> list[Violation]:
        """The same violations, with where the first page was handed out."""
        return [
            replace(item, allocated=self.allocated(item.pages[0])) if item.pages else item
            for item in found
        ]

    def alive(self, pages: Pages, generations: Pages) -> Flags:
        """Which pages are in use, and still in these lives."""
        same: Flags = (self._state[pages] == TAKEN) & (self._generation[pages] == generations)
        return same

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


def _some(flags: Flags) -> bool:
    """``flags.any()``, at a tenth of its cost for the few pages of a copy."""
    return b"\x01" in flags.tobytes()
