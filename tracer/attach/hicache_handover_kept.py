"""Pages that prefill reallocated before their handover was over."""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.requests import Sending
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.ledger import Flags, Pages
from hicache_dbg.tracer.words import counted, named

__all__ = ["CHECK", "Kept", "reallocated"]

CHECK = "handover"
#: The most pages named in a finding.
_FEW = 8


class Kept:
    """The generations of pages that must not be reallocated."""

    def __init__(self, pages: Pages, generation: Callable[[Pages], npt.NDArray[np.uint32]]) -> None:
        self._pages = pages
        self._generation = generation
        self._then = generation(pages)

    def changed(self) -> Flags:
        """Mark the pages that were reallocated since."""
        changed: Flags = self._generation(self._pages) != self._then
        return changed


def reallocated(link: Link, sending: Sending, kept: Kept) -> list[Finding]:
    """Return the finding that pages of ``sending`` were reallocated since its offer, if any were.

    Both ends may have digested the new bytes then, and agree on them.
    """
    pages = np.flatnonzero(kept.changed())
    if not pages.size:
        return []
    pool = "+".join(mirror.name for mirror in link.group.mirrors)
    return [
        Finding(
            time_ns=time.time_ns(),
            cls=FaultClass.SLOT_REUSE,
            pool=pool,
            pages=tuple(sending.pages[pages[:_FEW]].tolist()),
            page_count=pages.size,
            expected="pages that stay allocated until the handover is over",
            got=f"{counted(pages.size, 'page')} reallocated between the offer and the end of the write",
            message=(
                f"{pool}: prefill reallocated {counted(pages.size, 'page')} of request {sending.request} "
                f"before its handover was over: {named('logical page', pages.tolist())}; decode may hold "
                f"another request's bytes"
            ),
            advice="free the pages of a request at prefill only when its handover is over",
            check=CHECK,
            requests=(sending.request,),
        )
    ]
