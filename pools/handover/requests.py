"""The state of a handover at each end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hicache_dbg.pools.handover.wire import Transfer
from hicache_dbg.pools.indices import Ids

__all__ = ["Generation", "Receiving", "RecvState", "SendState", "Sending"]

Generation = Callable[[Ids], npt.NDArray[np.uint32]]
"""Returns how often each page was allocated, uint32 [pages]."""


class SendState(StrEnum):
    """State of a request at prefill."""

    OFFERED = "offered"
    WRITING = "writing"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Sending:
    """One attempt to hand a request over. Its pages may be read until it is ``over``.

    ``room`` holds decode's pages in the order of ``pages``, ``trace`` the ids of the request's span.
    """

    attempt: int
    request: str
    pages: Ids
    tokens: int
    trace: tuple[str, str] = ("", "")
    state: SendState = SendState.OFFERED
    reason: str = ""
    room: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    transfer: Transfer = None
    began: float = 0.0
    unwanted: str = ""

    @property
    def over(self) -> bool:
        """Whether its pages are no longer read."""
        return self.state in {SendState.DONE, SendState.FAILED}


class RecvState(StrEnum):
    """State of a request at decode. Prefill may write its pages from ``granted`` on."""

    EXPECTED = "expected"
    GRANTED = "granted"
    LANDED = "landed"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Receiving:
    """A request that decode expects, with the pages reserved for it.

    ``attempt`` and ``trace`` come from prefill's offer; ``began`` is the time of the grant. A request
    with a ``reason`` has failed, or is about to.
    """

    request: str
    pages: Ids
    tokens: int
    state: RecvState = RecvState.EXPECTED
    reason: str = ""
    attempt: int = 0
    trace: tuple[str, str] = ("", "")
    began: float = 0.0

    @property
    def over(self) -> bool:
        """Whether it has landed or failed."""
        return self.state in {RecvState.LANDED, RecvState.FAILED}
