"""The outcome of one page of a store operation: good, or the reason why it is a miss."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["OK", "PageResult", "PageState"]


class PageState(StrEnum):
    """The state of a page after an operation. Everything but ``ok`` is a miss for its reader."""

    OK = "ok"
    MISSING = "missing"
    #: Shorter than its header says, or than a header.
    SHORT = "short"
    #: The payload does not match its digest, or there is no valid header.
    DAMAGED = "damaged"
    #: A valid record of another key or another rank under this name.
    FOREIGN = "foreign"
    #: The key that was asked for, but with other tokens, namespace, model or format.
    MISKEYED = "miskeyed"
    #: The store reported an error.
    FAILED = "failed"
    #: The store was not asked, because it has not answered lately.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class PageResult:
    """The outcome of one page; ``expected`` and ``got`` are the two values that disagree.

    ``nbytes`` is the size of the record in the store, -1 if unknown. ``digest`` is the XXH3-64 of
    the payload according to the record's header.
    """

    state: PageState = PageState.OK
    reason: str = ""
    errno: int = 0
    expected: str = ""
    got: str = ""
    nbytes: int = -1
    digest: int = 0

    @property
    def good(self) -> bool:
        """Whether the page exists and is the one that was asked for."""
        return self.state is PageState.OK


OK = PageResult()
"""A good page, without details."""
