"""Who owns which page, in which generation, and who is still reading or writing it.

Pure bookkeeping on ints: no engine, no tensor, no clock. Every call takes all pages of one action
at once and returns the rules it breaks, so a page costs a few array operations and no Python code.

A page whose allocation was not seen (tracing started later) is unknown: whatever is done to it is
accepted, until it is allocated or freed once.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.checks.kept import Kept, Numbers
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
from hicache_dbg.tracer.checks.ownership_words import (
    FREE,
    HOLD,
    READ,
    TAKEN,
    UNKNOWN,
    WRITE,
    Words,
    repeats,
    times_named,
)
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.words import counted

__all__ = ["CHECK", "Ownership", "Pages"]

CHECK = "ownership"

Pages = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


#: The unit a copy adds to its pages, by (writes, holds).
_UNITS = {
    (writes, holds): (WRITE if writes else READ) + (HOLD if holds else 0)
    for writes in (False, True)
    for holds in (False, True)
}


class Ownership:
    """The pages ``0 .. pages - 1`` of one tier.

    ``refused`` means that the system itself rejected the call: what it breaks is reported, and the
    pages' state does not change.
    """

    def __init__(self, tier: str, pages: int) -> None:
        self.tier = tier
        self._words = Words(pages)
        #: Generation (>= 0) of a taken page; its bitwise complement (< 0) once the page was freed.
        self._lives = np.zeros(pages, np.int64)
        self._owner = np.zeros(pages, np.int64)
        self._made = Kept[Access]()
        self._allocated = self._made.numbers(pages)
        self._opened = self._made.numbers(pages)
        self._freed = self._made.numbers(pages)
        self._available: int | None = None
        #: How often a page in use was allocated or freed. While this does not change, copies find the
        #: generations they were promised.
        self.upset = 0

    def __len__(self) -> int:
        return len(self._words)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping, without the accesses that pages share."""
        parts = vars(self).values()
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray | Words))

    # -- allocation -----------------------------------------------------------------------------

    def alloc(self, pages: Pages, generations: Pages, owner: int, by: Access) -> list[Violation]:
        """Record the allocation of ``pages`` to ``owner``, with these generations."""
        found: list[Violation] = []
        words = self._words
        if words.all(pages, FREE):
            words.set(pages, TAKEN)
        else:
            found += self._broken(pages, words.are(pages, TAKEN), HANDED_TWICE, by, self._allocated)
            found += self._had(pages, HANDED_OPEN, by)
            words.become(pages, TAKEN)
        self._lives[pages] = generations
        self._owner[pages] = owner
        self._allocated[pages] = self._made.number(by)
        return found

    def free(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """Record that ``pages`` were freed."""
        found: list[Violation] = []
        words = self._words
        if not words.all(pages, TAKEN) or repeats(pages):
            repeated = np.ones(len(pages), np.bool_)
            repeated[np.unique(pages, return_index=True)[1]] = False
            found += self._broken(pages, repeated, NAMED_TWICE, by, self._allocated)
            found += self._broken(pages, words.are(pages, FREE), FREED_TWICE, by, self._freed)
            found += self._had(pages, FREED_OPEN, by)
        if not refused:
            lives = self._lives[pages]
            self._lives[pages] = np.minimum(lives, ~lives)
            words.become(pages, FREE)
            self._freed[pages] = self._made.number(by)
        return found

    def forget(self, pages: Pages) -> None:
        """Mark ``pages`` as unknown, after an action that was not observed."""
        self.upset += 1
        self._words.become(pages, UNKNOWN)
        self._lives[pages] = 0

    def balance(self, available: int, change: int, by: Access) -> list[Violation]:
        """Check the system's count of free pages after an action that changed it by ``change``."""
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
        """Record one more holder of each page."""
        found = self._free_already(pages, by)
        if not refused:
            self._words.more(pages, HOLD)
            self._opened[pages] = self._made.number(by)
        return found

    def release(self, pages: Pages, by: Access, *, refused: bool = False) -> list[Violation]:
        """Record one holder less of each page, for each time it is named."""
        return self._let_go(pages, by, times=times_named(pages), refused=refused)

    def open(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """Record a submitted copy that reads or ``writes`` the pages, and may also hold them.

        A page named twice counts once.
        """
        words, unit = self._words, _UNITS[writes, holds]
        found = None
        state = words.alike(pages, 0)
        if state is not None:
            words.set(pages, state + unit)  # the common case
        else:
            found = self._free_already(pages, by)
            others = words.of(pages, WRITE) > 0
            if writes:
                others |= words.of(pages, READ) > 0
            found += self._broken(pages, others, CLASH, by, self._opened)
            words.more(np.unique(pages), unit)
        self._opened[pages] = self._made.number(by)
        return found or []

    def close(
        self, pages: Pages, by: Access, *, writes: bool, holds: bool = False
    ) -> list[Violation]:
        """Record the end of a copy, and of the hold it got from ``open``."""
        words, unit = self._words, _UNITS[writes, holds]
        state = words.alike(pages, unit)
        if state is not None:
            words.set(pages, state)  # the common case
            return []
        pages, alone = np.unique(pages), WRITE if writes else READ
        found = self._broken(pages, words.of(pages, alone) <= 0, BELOW_ZERO, by, self._opened)
        words.fewer(pages, alone, 1)
        return found + self._let_go(pages, by, times=None) if holds else found

    def read(self, pages: Pages, generations: Pages, by: Access) -> list[Violation]:
        """Check a use of the pages' bytes by someone who was promised these generations."""
        if self._lives[pages].tobytes() == generations.tobytes():
            return []  # the common case
        free, lives = self._words.are(pages, FREE), self._lives[pages]
        lives = np.maximum(lives, ~lives)
        other = lives != generations
        found = self._broken(pages, free & ~other, OPENED_FREE, by, self._freed)
        stale = other & ~self._words.are(pages, UNKNOWN)
        if not stale.any():
            return found
        at = int(stale.argmax())
        return found + self._broken(
            pages,
            stale,
            STALE,
            by,
            self._allocated,
            expected=f"generation {generations[at]}",
            got=f"generation {lives[at]}, owner {self._owner[pages[at]]}",
        )

    def _had(self, pages: Pages, rule: Rule, by: Access) -> list[Violation]:
        """Report pages that are allocated or freed while in use."""
        found = self._broken(pages, self._words.some(pages), rule, by, self._opened)
        self.upset += len(found)
        return found

    def _free_already(self, pages: Pages, by: Access) -> list[Violation]:
        return self._broken(pages, self._words.are(pages, FREE), OPENED_FREE, by, self._freed)

    def _let_go(
        self, pages: Pages, by: Access, *, times: Pages | None, refused: bool = False
    ) -> list[Violation]:
        """Remove one holder; report pages released more often than they are held.

        ``times`` is how often each page is named, if any is named twice.
        """
        words, wanted = self._words, 1 if times is None else times
        below = words.of(pages, HOLD) < wanted
        if not refused:
            words.fewer(pages, HOLD, wanted)
        known = below & ~words.are(pages, UNKNOWN)
        return self._broken(pages, known, BELOW_ZERO, by, self._opened)

    def idle(self, by: Access) -> list[Violation]:
        """Report pages still held or open, although nothing is in flight."""
        held = self._words.busy()
        known = ~self._words.are(held, UNKNOWN)
        return self._broken(held, known, LEAKED, by, self._opened)

    def used(self, wanted: int, by: Access) -> list[Violation]:
        """Check that, at rest, exactly ``wanted`` pages are in use."""
        if self._words.every(UNKNOWN).any():
            if self._available is None:
                return []
            got = len(self) - self._available
        else:
            got = int(self._words.every(TAKEN).sum())
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
                expected=f"{counted(wanted, 'page')} in use",
                got=f"{got}",
                advice=LEAKED.advice,
            )
        ]

    def allocated(self, page: int) -> Access | None:
        """Return where ``page`` was last allocated; None if that was not seen."""
        return self._made.of(int(self._allocated[page]))

    def located(self, found: list[Violation]) -> list[Violation]:
        """Return the same violations, with where the first page was allocated."""
        return [
            replace(item, allocated=self.allocated(item.pages[0])) if item.pages else item
            for item in found
        ]

    def alive(self, pages: Pages, generations: Pages) -> Flags:
        """Return which pages are in use and still have these generations."""
        same: Flags = self._words.are(pages, TAKEN) & (self._lives[pages] == generations)
        return same

    def _broken(
        self,
        pages: Pages,
        wrong: Flags,
        rule: Rule,
        by: Access,
        previous: Numbers,
        *,
        expected: str = "",
        got: str = "",
    ) -> list[Violation]:
        if not wrong.any():
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
                self._made.of(int(previous[bad[0]])),
                self.allocated(bad[0]),
                expected=expected,
                got=got,
                advice=rule.advice,
            )
        ]
