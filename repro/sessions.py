"""Multi-turn agent sessions: a shared system prompt, a task, replies and tool results in turn."""

import heapq
from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.tokens import Special
from hicache_dbg.repro.workload import (
    End,
    Reply,
    Stop,
    Tokens,
    Transcript,
    Turn,
    content_tokens,
)

__all__ = ["SessionWorkload"]

_SYSTEM_SHARE = 0.43  # of the first prompt: two whole pages of 64 in 300 tokens, one of 256 in 780
_TOOL_RESULT_TOKENS = (24, 48)
_TOOL_STEPS = (4, 24)


class _Stream(IntEnum):
    """The purpose of a random stream, so that no two streams are the same."""

    SYSTEM = 1
    TASK = 2
    TOOL = 3


class SessionWorkload:
    """Sessions that go round by round until an end token, an empty reply or the last round.

    What a session is told depends on the seed, the session and the round, never on the replies. Its
    next prompt is its own history plus that, so a session that once went wrong continues from its
    own wrong words, as an agent would.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.transcripts = {session: Transcript() for session in range(config.sessions)}
        system = max(1, int(config.first_prompt * _SYSTEM_SHARE))
        prefix = _piece(Special.SYSTEM, content_tokens(system - 1, config.seed, _Stream.SYSTEM))
        self._due: list[tuple[int, int, Turn]] = [
            (0, session, self._turn(session, 0, np.concatenate((prefix, self._task(session)))))
            for session in self.transcripts
        ]
        self._finished_rounds = 0

    def ready(self, step: int) -> Iterable[Turn]:
        """Hand out the turns whose tool time is over, oldest first."""
        while self._due and self._due[0][0] <= step:
            yield heapq.heappop(self._due)[2]

    def answered(self, turn: Turn, reply: Reply, step: int) -> bool:
        """Record the reply and, unless the session is over, schedule its next turn."""
        transcript = self.transcripts[turn.session]
        transcript.replies.append(reply)
        self._finished_rounds += 1
        transcript.end = _end(reply, last=turn.round + 1 == self._config.rounds)
        if transcript.end is not None:
            self._finished_rounds += self._config.rounds - turn.round - 1
            return False
        pause, result = self._tool(turn.session, turn.round)
        history = np.concatenate((turn.tokens, np.array(reply.tokens, np.int64), result))
        follow_up = self._turn(turn.session, turn.round + 1, history)
        heapq.heappush(self._due, (step + pause, turn.session, follow_up))
        return True

    def open(self) -> bool:
        """Return whether any session has not ended."""
        return any(transcript.end is None for transcript in self.transcripts.values())

    def longest(self) -> int:
        """Return the tokens of the longest possible session."""
        config = self._config
        result = _TOOL_RESULT_TOKENS[1] + 2
        return (
            config.first_prompt + config.rounds * config.max_tokens + (config.rounds - 1) * result
        )

    def progress(self) -> tuple[int, int]:
        """Return rounds that are over or no longer needed, and rounds in all."""
        return self._finished_rounds, self._config.sessions * self._config.rounds

    def _turn(self, session: int, number: int, tokens: Tokens) -> Turn:
        return Turn(session, number, tokens, self._config.max_tokens)

    def _task(self, session: int) -> Tokens:
        system = max(1, int(self._config.first_prompt * _SYSTEM_SHARE))
        words = content_tokens(
            self._config.first_prompt - system - 2, self._config.seed, _Stream.TASK, session
        )
        return np.append(_piece(Special.USER, words), Special.ASSISTANT)

    def _tool(self, session: int, number: int) -> tuple[int, Tokens]:
        """Return how many steps the tool takes after round ``number``, and its result."""
        seed = (self._config.seed, _Stream.TOOL, session, number)
        generator = np.random.default_rng(seed)
        length = int(generator.integers(*_TOOL_RESULT_TOKENS, endpoint=True))
        pause = int(generator.integers(*_TOOL_STEPS, endpoint=True))
        words = content_tokens(length, *seed)
        return pause, np.append(_piece(Special.TOOL_RESULT, words), Special.ASSISTANT)


def _piece(marker: Special, words: Tokens) -> Tokens:
    return np.concatenate((np.array([marker], np.int64), words))


def _end(reply: Reply, *, last: bool) -> End | None:
    """Return how a session ends after ``reply``, or None if it continues."""
    if reply.stop is Stop.ERROR:
        return End.ERROR
    if reply.stop is Stop.END:
        return End.DONE if len(reply.tokens) > 1 else End.NO_TOOL
    return End.MAXROUNDS if last else None
