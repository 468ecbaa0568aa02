"""What a scheduler works on: turns with prompts in, replies out, a transcript per session."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hicache_dbg.repro.tokens import FIRST_CONTENT, VOCABULARY, Special

__all__ = [
    "STOPS",
    "End",
    "Reply",
    "Stop",
    "Tokens",
    "Transcript",
    "Truth",
    "Turn",
    "Workload",
    "content_tokens",
]

Tokens = npt.NDArray[np.int64]


class Stop(StrEnum):
    """Why a reply ended."""

    END = "end"
    TOOL_CALL = "tool_call"
    LENGTH = "length"
    ERROR = "error"


STOPS: Mapping[int, Stop] = MappingProxyType(
    {Special.END: Stop.END, Special.TOOL_CALL: Stop.TOOL_CALL}
)
"""The tokens with which an agent's reply is over, and why."""


class End(StrEnum):
    """How a session ended, as far as the session itself can tell."""

    DONE = "done"
    MAXROUNDS = "maxrounds"
    NO_TOOL = "no_tool"
    ERROR = "error"


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One prompt to be answered: the whole history, of which a prefix may be cached.

    ``stops`` are the tokens that end its reply; empty if the reply has a fixed length.
    """

    session: int
    round: int
    tokens: Tokens
    max_tokens: int
    stops: Mapping[int, Stop] = field(default_factory=lambda: STOPS)

    @property
    def capacity(self) -> int:
        """Most tokens the sequence can have, prompt and reply."""
        return len(self.tokens) + self.max_tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered (including the token that stopped it), or what went wrong."""

    tokens: tuple[int, ...]
    stop: Stop
    error: str = ""


@dataclass(slots=True)
class Transcript:
    """The replies of one session so far, and its end once it has one."""

    replies: list[Reply] = field(default_factory=list)
    end: End | None = None


Truth = Mapping[int, Transcript]
"""The transcript that each session should have."""


class Workload(Protocol):
    """A source of turns. Which turns come, and when, must not depend on how fast they are answered."""

    transcripts: dict[int, Transcript]

    def ready(self, step: int) -> Iterable[Turn]:
        """Hand out the turns that became ready by scheduler step ``step``, each once."""
        ...

    def answered(self, turn: Turn, reply: Reply, step: int) -> bool:
        """Take a reply; return whether the session continues (its cache is needed again)."""
        ...

    def open(self) -> bool:
        """Return whether turns are still to come, now or after a reply."""
        ...

    def longest(self) -> int:
        """Return the most tokens one session can have, prompt and replies."""
        ...

    def progress(self) -> tuple[int, int]:
        """Return units of work done, and in all."""
        ...


def content_tokens(count: int, *seed: int) -> Tokens:
    """Draw ``count`` content tokens that depend on ``seed`` alone."""
    generator = np.random.default_rng(seed)
    return generator.integers(FIRST_CONTENT, VOCABULARY, count, dtype=np.int64)
