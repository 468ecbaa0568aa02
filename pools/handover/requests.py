"""A request on its way from prefill to decode, as each end sees it."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from hicache_dbg.pools.handover.wire import Transfer
from hicache_dbg.pools.indices import Ids

__all__ = ["Receiving", "RecvState", "SendState", "Sending"]


class SendState(StrEnum):
    """Where a request is on its way to decode."""

    OFFERED = "offered"
    WRITING = "writing"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Sending:
    """One attempt to hand a request over; its pages are read until it is ``over``.

    ``room`` are decode's pages, in the order of ``pages``; ``trace`` the ids of its request's span.
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
        """Whether nothing reads its pages any more."""
        return self.state in {SendState.DONE, SendState.FAILED}


class RecvState(StrEnum):
    """Where a request is on its way here; from ``granted`` on prefill may write its pages."""

    EXPECTED = "expected"
    GRANTED = "granted"
    LANDED = "landed"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Receiving:
    """A request that is waited for, and where its pages are to go.

    ``attempt`` and ``trace`` are what prefill's offer says; ``began`` when room was given.
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
