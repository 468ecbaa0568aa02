"""The rules of ownership: each has a fault class, fixed words for the report, and one advice."""

from dataclasses import dataclass

from hicache_dbg.tracer.events import FaultClass

__all__ = [
    "BELOW_ZERO",
    "CLASH",
    "FREED_OPEN",
    "FREED_TWICE",
    "HANDED_OPEN",
    "HANDED_TWICE",
    "LEAKED",
    "NAMED_TWICE",
    "OPENED_FREE",
    "STALE",
    "UNBALANCED",
    "UNPINNED",
    "Rule",
]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that can be broken: its class, the words of the report, and what to do."""

    cls: FaultClass
    words: str
    advice: str


_HOLD = "hold the pages at both ends from the submission of a copy to its acknowledgement"
_ONCE = "free each page in one place only, and let that place own it"

FREED_OPEN = Rule(FaultClass.SLOT_REUSE, "freed while a copy has it open", _HOLD)
HANDED_OPEN = Rule(FaultClass.SLOT_REUSE, "handed out again while a copy has it open", _HOLD)
OPENED_FREE = Rule(FaultClass.SLOT_REUSE, "opened by a copy after it was freed", _HOLD)
CLASH = Rule(FaultClass.SLOT_REUSE, "written by a copy while another copy has it open", _HOLD)
STALE = Rule(FaultClass.SLOT_REUSE, "in another life than the one that was submitted", _HOLD)
FREED_TWICE = Rule(FaultClass.DOUBLE_FREE, "freed though it is free already", _ONCE)
NAMED_TWICE = Rule(FaultClass.DOUBLE_FREE, "named twice in one free", _ONCE)
HANDED_TWICE = Rule(FaultClass.DOUBLE_FREE, "handed out though it was never freed", _ONCE)
BELOW_ZERO = Rule(
    FaultClass.DOUBLE_FREE,
    "released more often than it was acquired",
    "undo each acquire exactly once, on one path",
)
UNPINNED = Rule(
    FaultClass.DOUBLE_FREE,
    "unpinned more often than it was pinned",
    "undo each pin exactly once, on one path",
)
UNBALANCED = Rule(
    FaultClass.DOUBLE_FREE,
    "the states no longer add up: the allocator counts other free pages than were freed",
    _ONCE,
)
LEAKED = Rule(
    FaultClass.DOUBLE_FREE,
    "still held though nothing is under way",
    "give pages back on the failing paths as well",
)
