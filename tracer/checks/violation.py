"""What a state machine returns when a rule is broken: facts, and their text.

An :class:`Access` is one action on pages. A :class:`Violation` holds two accesses that conflict,
and where the pages were allocated.
"""

from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.words import named

__all__ = ["FEW", "Access", "Frame", "Violation"]

#: Most page ids held by a finding.
FEW = 8


class Frame(NamedTuple):
    """One stack frame that led to an access."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Access:
    """One action on pages: what, by which thread or stream, and from where.

    ``site`` holds the caller's own frames, innermost first; empty if they were not captured.
    """

    what: str
    actor: str
    site: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        where = f" at {' < '.join(map(str, self.site))}" if self.site else ""
        return f"{self.what} on {self.actor}{where}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule; ``str()`` is the report, in one line.

    Args:
        cls: the fault class.
        check: the detector that reports it.
        where: the tier or pool whose pages these are.
        words: what was done that must not be.
        pages: all affected pages, in the order of the call.
        this: the access that broke the rule.
        previous: the access it conflicts with.
        allocated: where the first page was allocated; None if not seen because tracing started
            later.
        layers: the affected layers; empty for the page as a whole.
        expected: the value that should be.
        got: the value that is.
        advice: what to do about it.
        op_id: the operation that ``this`` belongs to, or 0.
        pool: the affected pool, if not every pool that shares these pages.
    """

    cls: FaultClass
    check: str
    where: str
    words: str
    pages: tuple[int, ...]
    this: Access
    previous: Access | None = None
    allocated: Access | None = None
    layers: tuple[int, ...] = ()
    expected: str = ""
    got: str = ""
    advice: str = ""
    op_id: int = 0
    pool: str = ""

    def __str__(self) -> str:
        layers = f", {named('layer', self.layers)}" if self.layers else ""
        which = f" {named('page', self.pages)}" if self.pages else ""
        subject = f"{self.where}{which}{layers}"
        values = f" (expected {self.expected}, got {self.got})" if self.expected else ""
        return (
            f"{subject}: {self.words}{values}; this access: {self.this}; "
            f"previous access: {self.previous or 'none on record'}; "
            f"allocated: {self.allocated or 'unknown, tracing began later'}"
        )

    def finding(self, *, pool: str, time_ns: int, rank: int = 0, op: str = "") -> Finding:
        """Return the violation as an event about its own pool, or else about ``pool``."""
        pool = self.pool or pool
        return Finding(
            time_ns=time_ns,
            rank=rank,
            cls=self.cls,
            pool=pool,
            op=op,
            layer=self.layers[0] if len(self.layers) == 1 else -1,
            pages=self.pages[:FEW],
            page_count=len(self.pages),
            expected=self.expected,
            got=self.got,
            message=f"{pool}: {self}",
            advice=self.advice,
            check=self.check,
            op_id=self.op_id,
        )
