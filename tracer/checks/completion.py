"""Check that every operation ends, in a status that says what really happened.

Pure bookkeeping on ints: an operation is promised (pages, layers), delivers, ends in a status, and
is reported to its readers. A reported success that the operation does not bear out is a violation,
and so is a gate that opens before its layer has arrived.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NewType

import numpy as np

from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access, Violation
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.words import counted, named

__all__ = ["CHECK", "Completion", "OpId"]

CHECK = "completion"

OpId = NewType("OpId", int)

HONEST = "let a completion carry the status of its copy, and hand failures to the readers"


@dataclass(slots=True)
class _Op:
    """What is known of an operation in flight."""

    where: str
    pages: Pages
    layers: frozenset[int]
    by: Access
    number: int
    delivered: Mapping[str, Pages] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    status: str = ""
    ended: Access | None = None


class Completion:
    """Tracks operations from their submission to the report that they are done."""

    def __init__(self) -> None:
        self._ops: dict[OpId, _Op] = {}

    def promise(  # noqa: PLR0917 - an operation is all of these
        self,
        op: OpId,
        where: str,
        pages: Pages,
        layers: frozenset[int],
        by: Access,
        number: int = 0,
    ) -> None:
        """Record the submission of ``op``, which must bring all ``layers`` of these pages.

        ``pages`` are destination pages. ``number`` is the system's own id of the operation, for the
        report.
        """
        self._ops[op] = _Op(where, pages, layers, by, number)

    def begun(self, op: OpId, given: Mapping[str, Pages], by: Access) -> list[Violation]:
        """Record the destination pages ``given`` to each part (pool).

        Report those that no part covers.
        """
        known = self._ops.get(op)
        if known is None:
            return []
        known.delivered = given
        return self._short(known, by, "copies fewer pages than were asked for")

    def layers_arrived(self, op: OpId, layers: Iterable[int]) -> None:
        """Record that the copy itself reported ``layers`` as arrived."""
        known = self._ops.get(op)
        if known is not None:
            known.arrived.update(layers)

    def end(self, op: OpId, status: str, by: Access) -> None:
        """Record that the copy returned or raised; ``status`` is ``done`` or the reason why not."""
        known = self._ops.get(op)
        if known is not None:
            known.status, known.ended = status, by

    def gate(self, op: OpId, layer: int, by: Access) -> list[Violation]:
        """Check that the gate of ``layer`` opens after its bytes and on a true report."""
        known = self._ops.get(op)
        if known is None or layer in known.arrived:
            return []
        if known.ended is not None:
            return [self._lie(known, by, f"layer {layer} arrived", known.status or "no status")]
        return [
            self._violation(
                known,
                FaultClass.READ_BEFORE_LOAD,
                f"the gate of layer {layer} was opened before its bytes were there",
                by,
                expected=f"layer {layer} arrived",
                got=named("layer", known.arrived) if known.arrived else "no layer",
                advice="open a layer's gate from the event behind its own copy",
            )
        ]

    def report(self, op: OpId, by: Access, *, good: bool) -> list[Violation]:
        """Check the report of ``op`` to its readers; ``good`` means they may use the pages."""
        known = self._ops.pop(op, None)
        if known is None or not good:
            return []
        if known.status != "done":
            return [self._lie(known, by, "done", known.status or "no status")]
        late = known.layers - known.arrived
        if late:
            return [
                self._lie(known, by, counted(len(known.layers), "layer"), f"no layer {min(late)}")
            ]
        return self._short(known, by, "reported as done and not delivered")

    def _short(self, known: _Op, by: Access, words: str) -> list[Violation]:
        found = []
        for part, delivered in known.delivered.items():
            if delivered is known.pages or delivered.tobytes() == known.pages.tobytes():
                continue  # the common case
            lost = known.pages[~np.isin(known.pages, delivered)]
            if lost.size:
                found.append(
                    self._violation(
                        known,
                        FaultClass.FAILED_LOAD,
                        words,
                        by,
                        expected=f"{counted(known.pages.size, 'page')} of {part}",
                        got=f"{known.pages.size - lost.size}",
                        advice=HONEST,
                        pages=lost,
                    )
                )
        return found

    def outstanding(self, ops: Iterable[OpId], by: Access) -> list[Violation]:
        """Report those of ``ops`` that never ended, although nothing is in flight any more."""
        left = [self._ops.pop(op) for op in ops if op in self._ops]
        return [
            self._violation(
                known,
                FaultClass.FAILED_LOAD,
                "submitted, and never reported as done or failed",
                by,
                expected="a status",
                got=known.status or "none",
                advice="end every operation in a status, also where its worker fails",
            )
            for known in left
        ]

    def _lie(self, known: _Op, by: Access, expected: str, got: str) -> Violation:
        return self._violation(
            known,
            FaultClass.FAILED_LOAD,
            "reported as done and not delivered",
            by,
            expected=expected,
            got=got,
            advice=HONEST,
        )

    @staticmethod
    def _violation(
        known: _Op,
        cls: FaultClass,
        words: str,
        by: Access,
        *,
        expected: str,
        got: str,
        advice: str,
        pages: Pages | None = None,
    ) -> Violation:
        return Violation(
            cls,
            CHECK,
            known.where,
            words,
            tuple((known.pages if pages is None else pages).tolist()),
            by,
            known.ended or known.by,
            expected=expected,
            got=got,
            advice=advice,
            op_id=known.number,
        )
