"""What a state machine returns when a rule is broken: facts, and their text.

An :class:`Access` is one thing that was done to pages. A :class:`Violation` holds two of them that
do not go together, and where the pages came from.
"""

from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from hicache_dbg.tracer.checks.slots import named
from hicache_dbg.tracer.events import FaultClass, Finding

__all__ = ["FEW", "Access", "Frame", "Violation"]

#: Page ids that a finding holds at most.
FEW = 8


class Frame(NamedTuple):
    """One line of a program that led to an access."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Access:
    """One thing that was done to pages: what, by which thread or stream, and from where.

    ``site`` is the caller's own frames, innermost first; empty where nobody took them.
    """

    what: str
    actor: str
    site: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        where = f" at {' < '.join(map(str, self.site))}" if self.site else ""
        return f"{self.what} on {self.actor}{where}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule. ``str()`` is the report, in one line.

    Args:
        cls: the fault class.
        check: which detector says so.
        where: the tier, or the pool, whose pages these are.
        words: what was done that must not be.
        pages: all pages concerned, in the order of the call.
        this: the access that broke the rule.
        previous: the access that it conflicts with.
        allocated: where the first page was handed out; None: not seen, tracing began later.
        layers: layers concerned; empty: the page as a whole.
        expected: the value that should be.
        got: the value that is.
        advice: what to do about it.
        op_id: of the operation that ``this`` belongs to, or 0.
        pool: the pool concerned, where it is not every pool that shares these pages.
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
        """The same as an event about its own pool, or else ``pool``."""
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
