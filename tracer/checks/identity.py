"""Check that a page found under a key holds what the key stands for.

A second, independent digest of the tokens is kept beside each page: the cache's own keys may be
truncated, collide, or leave out what distinguishes two requests. Pure bookkeeping on ints.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xxhash

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "Digests", "Identity", "prefix_digests"]

CHECK = "identity"
NEVER = -1

Digests = npt.NDArray[np.uint64]


def prefix_digests(pages: Iterable[bytes]) -> Digests:
    """Return XXH3-64 of all tokens up to the end of each page, given the pages' tokens in order."""
    hasher, digests = xxhash.xxh3_64(), []
    for tokens in pages:
        hasher.update(tokens)
        digests.append(hasher.intdigest())
    return np.array(digests, np.uint64)


class Identity:
    """Which tokens each page of one tier was written for, and in which generation."""

    def __init__(self, tier: str, pages: int) -> None:
        self.tier = tier
        self._digests = np.zeros(pages, np.uint64)
        self._generations = np.full(pages, NEVER, np.int64)
        #: Since when the cache offers each page under its key; NEVER if it does not or nobody saw it.
        self._cached = np.full(pages, NEVER, np.int64)

    def say(self, pages: Pages, generations: Pages, digests: Digests) -> None:
        """Record that ``pages`` hold the bytes of these tokens, in these generations."""
        self._digests[pages] = digests
        self._generations[pages] = generations
        self._cached[pages] = NEVER

    def cached(self, pages: Pages, moment: int) -> None:
        """Record that from ``moment`` on the cache offers ``pages`` under their key."""
        self._cached[pages] = moment

    def carry(
        self, pages: Pages, generations: Pages, to: "Identity", onto: tuple[Pages, Pages]
    ) -> None:
        """Transfer what is known of ``pages`` to pages and generations ``onto`` of tier ``to``."""
        known = self._generations[pages] == generations
        if b"\1" not in (flags := known.tobytes()):
            return  # nothing is known of any of them
        there, lives = onto
        if b"\0" in flags:
            pages, there, lives = pages[known], there[known], lives[known]
        to.say(there, lives, self._digests[pages])

    def written_for(self, digest: int, before: int) -> tuple[Pages, Pages]:
        """Return the pages, and their generations, cached for these tokens before a moment."""
        same = (self._digests == np.uint64(digest)) & (self._cached != NEVER)
        pages = np.flatnonzero(same & (self._cached < before)).astype(np.int64)
        return pages, self._generations[pages]

    def missed(self, pages: Pages, by: Access) -> list[Violation]:
        """Report a miss for tokens for which ``pages`` are cached."""
        if not len(pages):
            return []
        return [
            Violation(
                FaultClass.KEY_IDENTITY,
                CHECK,
                self.tier,
                "two keys for one content: not found, though pages that were written for these very "
                "tokens are cached",
                tuple(pages.tolist()),
                by,
                expected="a hit",
                got="a miss",
                advice="make keys of the tokens alone, in one way, everywhere: no random seed, no salt of a "
                "process, no pairs here and single tokens there",
            )
        ]

    def ask(
        self, pages: Pages, generations: Pages, digests: Digests, by: Access
    ) -> list[Violation]:
        """Check that ``pages`` hold the bytes of these tokens; unknown pages pass."""
        known = self._generations[pages] == generations
        wrong = known & (self._digests[pages] != digests)
        if not wrong.any():
            return []
        at = int(wrong.argmax())
        return [
            Violation(
                FaultClass.KEY_IDENTITY,
                CHECK,
                self.tier,
                "one key for two contents: found under it, and written for other tokens",
                tuple(pages[wrong].tolist()),
                by,
                expected=f"tokens {int(digests[at]):016x}",
                got=f"{int(self._digests[pages[at]]):016x}",
                advice="put everything that tells two requests apart into the key: all tokens, salt, adapter, dtype",
            )
        ]
