"""Check that all components of a page have the same generation: keys, index keys, scales, state.

A page of a group of pools is one page: whatever is restored of it must come from one backup of all
pools. Pure bookkeeping on ints.
"""

from collections.abc import Sequence

import numpy as np

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "Components"]

CHECK = "components"
NEVER = -1
ADVICE = "move every pool of the group in the same operation"


class Components:
    """The generation of each component of the pages of one tier.

    Args:
        tier: the tier's name.
        pages: number of its pages.
        names: all components (pools of the group) that a page has.
    """

    def __init__(self, tier: str, pages: int, names: Sequence[str]) -> None:
        self.tier = tier
        self.names = tuple(names)
        self._generation = {name: np.full(pages, NEVER, np.int64) for name in names}

    def arrived(self, name: str, pages: Pages, generations: Pages) -> None:
        """Record that component ``name`` of ``pages`` was written under these generations."""
        self._generation[name][pages] = generations

    def moved(self, names: tuple[str, ...], pages: Pages, by: Access) -> list[Violation]:
        """Check that a copy of ``pages`` moves all components."""
        if names == self.names:
            return []  # the common case
        absent = [name for name in self.names if name not in names] if len(pages) else []
        return [
            Violation(
                FaultClass.SIDECAR_MISSING,
                CHECK,
                self.tier,
                f"{name} is not carried with the pages it belongs to",
                tuple(pages.tolist()),
                by,
                expected=", ".join(self.names),
                got=", ".join(name for name in self.names if name not in absent),
                advice=ADVICE,
                pool=name,
            )
            for name in absent
        ]

    def whole(self, pages: Pages, generations: Pages) -> bool:
        """Return whether every component of ``pages`` was written under these generations."""
        lives = generations.tobytes()
        return all(known[pages].tobytes() == lives for known in self._generation.values())

    def present(self, pages: Pages, generations: Pages, by: Access) -> list[Violation]:
        """Check pages that an index reports as present under these generations.

        If their bytes were written only under other generations, they are gone, whatever the index
        says.
        """
        lives = [self._generation[name][pages] for name in self.names]
        same = np.logical_or.reduce([life == generations for life in lives])
        seen = np.logical_or.reduce([life != NEVER for life in lives])
        gone = seen & ~same
        if not gone.any():
            return []
        at = int(gone.argmax())
        return [
            Violation(
                FaultClass.STALE_INDEX,
                CHECK,
                self.tier,
                "the index says present, and the page has another owner since its bytes were written",
                tuple(pages[gone].tolist()),
                by,
                expected=f"bytes of generation {generations[at]}",
                got=f"bytes of generation {max(int(life[at]) for life in lives)}",
                advice="drop a page from the index before it is freed, under the same lock",
            )
        ]

    def agree(self, pages: Pages, generations: Pages, by: Access) -> list[Violation]:
        """Check that every component of ``pages`` has these generations.

        Pages without any recorded component are skipped: tracing started later.
        """
        fits = {name: self._generation[name][pages] == generations for name in self.names}
        if len({same.tobytes() for same in fits.values()}) == 1:
            return []  # all components have this generation, or none was seen
        seen = np.logical_or.reduce([*fits.values()])
        found = []
        for name, same in fits.items():
            wrong = seen & ~same
            if not wrong.any():
                continue
            at = int(wrong.argmax())
            has = int(self._generation[name][pages[at]])
            got = f"generation {has}" if has != NEVER else "never written"
            found.append(
                Violation(
                    FaultClass.SIDECAR_MISSING,
                    CHECK,
                    self.tier,
                    f"component generations differ: {name} is not of the page's life",
                    tuple(pages[wrong].tolist()),
                    by,
                    expected=f"generation {generations[at]}",
                    got=got,
                    advice=ADVICE,
                    pool=name,
                )
            )
        return found
