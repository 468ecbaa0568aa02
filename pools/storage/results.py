"""What became of one page in a store: it is there and good, or why it is a miss."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["OK", "PageResult", "PageState"]


class PageState(StrEnum):
    """How a page of a store operation ended. Everything but ``ok`` is a miss for its reader."""

    OK = "ok"
    MISSING = "missing"
    #: Fewer bytes than its own header promises, or than a header has.
    SHORT = "short"
    #: Bytes that are not what their header says, or no header at all.
    DAMAGED = "damaged"
    #: A good record of another key or another rank under this name.
    FOREIGN = "foreign"
    #: The key asked for, but other tokens, another namespace, model or format behind it.
    MISKEYED = "miskeyed"
    #: The store reported an error.
    FAILED = "failed"
    #: The store was not asked: it did not answer lately.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class PageResult:
    """The end of one page; ``expected`` and ``got`` are the two values that disagree.

    ``nbytes`` is what the store holds under the key, -1 where that is not known. ``digest`` is the
    XXH3-64 of the payload as the record's header has it.
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
        """Whether the page is there and is what was asked for."""
        return self.state is PageState.OK


OK = PageResult()
"""A page that went well, with nothing to add."""
