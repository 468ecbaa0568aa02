"""What a hypothesis is, and how all of them are evaluated."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from hicache_dbg.tracer.diagnose import hypotheses
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass

__all__ = [
    "Answer",
    "Hypothesis",
    "Text",
    "Verdict",
    "ask_all",
    "in_order",
    "known_hypotheses",
    "worded",
]

#: A text, or what writes it from the evidence.
Text = str | Callable[[Evidence], str]


class Verdict(StrEnum):
    """What the evidence says about a hypothesis."""

    CONFIRMED = "confirmed"
    FALSIFIED = "falsified"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A cause that people argue about, and what would settle it.

    ``words`` state it once it is confirmed. ``judge`` returns the verdict and, in one sentence with
    numbers, its evidence. ``rank`` orders confirmed ones: 0 names a cause by itself, 1 adds to a
    cause, 2 is about the tracer's own coverage. ``decide_by`` is a command that would settle an
    undecided one; it and ``advice`` may depend on the evidence. ``cause`` is the fault class it
    stands for, if any: among equal ranks, the earlier class leads.
    """

    name: str
    question: str
    falsified_by: str
    confirmed_by: str
    words: str
    judge: Callable[[Evidence], tuple[Verdict, str]]
    rank: int = 1
    advice: Text = ""
    decide_by: Text = ""
    cause: FaultClass | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis with its verdict; ``cause`` is the fault class it stands for, if any."""

    name: str
    question: str
    words: str
    verdict: Verdict
    evidence: str
    advice: str = ""
    decide_by: str = ""
    rank: int = 0
    cause: FaultClass | None = None


def known_hypotheses() -> tuple[Hypothesis, ...]:
    """Return every hypothesis that has a file here, in order."""
    found = [
        importlib.import_module(f"{hypotheses.__name__}.{module.name}").HYPOTHESIS
        for module in pkgutil.iter_modules(hypotheses.__path__)
    ]
    return in_order(found)


def in_order(asked: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Sort by rank, then by fault class, then by name."""
    return tuple(sorted(asked, key=_key))


def _key(hypothesis: Hypothesis) -> tuple[int, int, str]:
    classes = list(FaultClass)
    cause = classes.index(hypothesis.cause) if hypothesis.cause else len(classes)
    return hypothesis.rank, cause, hypothesis.name


def worded(text: Text, evidence: Evidence) -> str:
    """Return a text as the evidence words it."""
    return text if isinstance(text, str) else str(text(evidence))


def _judged(hypothesis: Hypothesis, evidence: Evidence) -> tuple[Verdict, str, str, str]:
    """Return verdict, reason, and what to do if it is confirmed, or decides it if it is undecided.

    A failing hypothesis (a user's, for example) is reported as undecided.
    """
    try:
        verdict, reason = hypothesis.judge(evidence)
        advice = worded(hypothesis.advice, evidence) if verdict == Verdict.CONFIRMED else ""
        decide = worded(hypothesis.decide_by, evidence) if verdict == Verdict.UNDECIDED else ""
        return Verdict(verdict), str(reason), advice, decide
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; the error is the evidence
        reason = f"it could not be asked: {type(error).__name__}: {error}"
        return Verdict.UNDECIDED, " ".join(reason.split()), "", ""


_ORDER = (Verdict.CONFIRMED, Verdict.UNDECIDED, Verdict.FALSIFIED)


def ask_all(evidence: Evidence, asked: Sequence[Hypothesis] | None = None) -> list[Answer]:
    """Return every hypothesis's answer: confirmed first, then undecided, then falsified."""
    answers = []
    for hypothesis in known_hypotheses() if asked is None else asked:
        verdict, reason, advice, decide_by = _judged(hypothesis, evidence)
        answers.append(
            Answer(
                name=hypothesis.name,
                question=hypothesis.question,
                words=hypothesis.words,
                verdict=verdict,
                evidence=reason,
                advice=advice,
                decide_by=decide_by,
                rank=hypothesis.rank,
                cause=hypothesis.cause,
            )
        )
    return sorted(answers, key=lambda answer: _ORDER.index(answer.verdict))
