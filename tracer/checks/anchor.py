"""Check that every pool of a group copies the pages of the operation."""

import numpy as np

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass

__all__ = ["CHECK", "strays"]

CHECK = "anchor"


def strays(
    pool: str,
    promised: tuple[Pages, Pages],
    given: tuple[Pages, Pages],
    by: Access,
) -> list[Violation]:
    """Report the (host, device) page pairs a pool copies that the operation does not have.

    Args:
        pool: the pool's name.
        promised: host and device pages of the operation, pair by pair.
        given: host and device pages of this pool's copy.
        by: the operation.
    """
    if all(np.array_equal(a, b) for a, b in zip(promised, given, strict=True)):
        return []
    asked = set(zip(*(pages.tolist() for pages in promised), strict=True))
    wrong = [
        pair for pair in zip(*(pages.tolist() for pages in given), strict=True) if pair not in asked
    ]
    if not wrong:
        return []
    return [
        Violation(
            FaultClass.INDEX_SPACE,
            CHECK,
            "host",
            f"{pool} copies pages that the operation is not about: another index space was used for it",
            tuple(host for host, _ in wrong),
            by,
            expected=_pairs(list(zip(*(pages.tolist() for pages in promised), strict=True))),
            got=_pairs(wrong),
            advice="translate indices once, for the anchor, and give all pools of its group the same pages",
            pool=pool,
        )
    ]


def _pairs(pairs: list[tuple[int, ...]]) -> str:
    few = ", ".join(f"host {host} with device {device}" for host, device in pairs[:4])
    return few + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
