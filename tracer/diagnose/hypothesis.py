"""What a hypothesis is, and how all of them are asked."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from hicache_dbg.tracer.diagnose import hypotheses
from hicache_dbg.tracer.diagnose.evidence import Evidence

__all__ = ["Answer", "Hypothesis", "Verdict", "ask_all", "known_hypotheses"]


class Verdict(StrEnum):
    """What the evidence does to a hypothesis."""

    CONFIRMED = "confirmed"
    FALSIFIED = "falsified"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A cause that people argue about, and what would settle it.

    ``words`` say it where it is confirmed. ``judge`` returns the verdict and the evidence for it
    in one sentence with its numbers. ``rank`` orders the confirmed ones: 0 names a cause by
    itself, 1 adds to it, 2 is about the tracer's own sight. ``decide_by`` is a command that would
    settle an undecided one.
    """

    name: str
    question: str
    falsified_by: str
    confirmed_by: str
    words: str
    judge: Callable[[Evidence], tuple[Verdict, str]]
    rank: int = 1
    advice: str = ""
    decide_by: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis, asked."""

    name: str
    question: str
    words: str
    verdict: Verdict
    evidence: str
    advice: str = ""
    decide_by: str = ""


def known_hypotheses() -> tuple[Hypothesis, ...]:
    """Every hypothesis that has a file here, by rank and name."""
    found = [
        importlib.import_module(f"{hypotheses.__name__}.{module.name}").HYPOTHESIS
        for module in pkgutil.iter_modules(hypotheses.__path__)
    ]
    return tuple(sorted(found, key=lambda hypothesis: (hypothesis.rank, hypothesis.name)))


_ORDER = (Verdict.CONFIRMED, Verdict.UNDECIDED, Verdict.FALSIFIED)


def ask_all(evidence: Evidence, asked: Sequence[Hypothesis] | None = None) -> list[Answer]:
    """Every hypothesis's answer: confirmed first, then undecided, then falsified."""
    answers = []
    for hypothesis in known_hypotheses() if asked is None else asked:
        verdict, reason = hypothesis.judge(evidence)
        answers.append(
            Answer(
                name=hypothesis.name,
                question=hypothesis.question,
                words=hypothesis.words,
                verdict=verdict,
                evidence=reason,
                advice=hypothesis.advice if verdict is Verdict.CONFIRMED else "",
                decide_by=hypothesis.decide_by if verdict is Verdict.UNDECIDED else "",
            )
        )
    return sorted(answers, key=lambda answer: _ORDER.index(answer.verdict))
