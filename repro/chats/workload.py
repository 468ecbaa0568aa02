"""Chats as a workload: every chat asks all of its questions, whatever the replies."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hicache_dbg.repro.chats.smollm2 import Chatbot, load
from hicache_dbg.repro.chats.texts import CHATS
from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.result import Exchange
from hicache_dbg.repro.workload import End, Reply, Stop, Transcript, Truth, Turn

__all__ = ["ChatWorkload", "answered_alone", "exchanges"]


class ChatWorkload:
    """Concurrent chats that take turns.

    There are ``config.sessions`` chats of ``config.rounds`` turns, or as many as exist. The next
    prompt of a chat is its last one, the reply as it was given, and a question.

    Raises:
        ModelMissingError: the model is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        self._bot = load()
        self._most = config.max_tokens
        self._chats = CHATS[: config.sessions]
        self._rounds = min(config.rounds, len(CHATS[0]))
        self._answered = 0
        self.transcripts = {chat: Transcript() for chat in range(len(self._chats))}
        self._due = deque(
            self._turn(chat, 0, self._bot.opening(questions[0]))
            for chat, questions in enumerate(self._chats)
        )

    def ready(self, step: int) -> Iterable[Turn]:  # noqa: ARG002 - users reply at once
        """Hand out the next turns of answered chats, in the order of their answers."""
        while self._due:
            yield self._due.popleft()

    def answered(self, turn: Turn, reply: Reply, step: int) -> bool:  # noqa: ARG002 - as above
        """Record the reply and queue the chat's next question."""
        transcript = self.transcripts[turn.session]
        transcript.replies.append(reply)
        self._answered += 1
        following = turn.round + 1
        if reply.stop is Stop.ERROR:
            transcript.end = End.ERROR
            self._answered += self._rounds - following
        elif following == self._rounds:
            transcript.end = End.DONE
        else:
            question = self._chats[turn.session][following]
            more = self._bot.following(question, ended=reply.stop is Stop.END)
            history = (turn.tokens, reply.tokens, more)
            self._due.append(self._turn(turn.session, following, np.concatenate(history)))
        return transcript.end is None

    def open(self) -> bool:
        """Return whether any chat has not ended."""
        return any(transcript.end is None for transcript in self.transcripts.values())

    def longest(self) -> int:
        """Return the length of the longest possible chat, in tokens."""
        return max(map(self._longest, self._chats))

    def _longest(self, questions: tuple[str, ...]) -> int:
        first, *others = questions[: self._rounds]
        asked = len(self._bot.opening(first))
        asked += sum(len(self._bot.following(other, ended=False)) for other in others)
        return asked + self._rounds * self._most

    def progress(self) -> tuple[int, int]:
        """Return turns that are over or no longer needed, and turns in all."""
        return self._answered, len(self._chats) * self._rounds

    def _turn(self, chat: int, number: int, tokens: Iterable[int]) -> Turn:
        given = np.fromiter(tokens, np.int64)
        return Turn(chat, number, given, self._most, {self._bot.end: Stop.END})


def answered_alone(turn: Turn) -> Reply:
    """Answer ``turn`` with everything recomputed, in the library's own cache."""
    bot = load()
    tokens = bot.reply(turn.tokens.tolist(), turn.max_tokens)
    return Reply(tuple(tokens), turn.stops.get(tokens[-1], Stop.LENGTH))


def exchanges(truth: Truth, got: Mapping[int, Transcript]) -> Iterator[Exchange]:
    """Yield each reply of ``got`` beside the expected one."""
    bot = load()
    for chat, transcript in got.items():
        for turn, reply in enumerate(transcript.replies):
            expected = truth[chat].replies[turn]
            yield Exchange(
                chat, turn, CHATS[chat][turn], *(_said(bot, one) for one in (expected, reply))
            )


def _said(bot: Chatbot, reply: Reply) -> str:
    return f"({reply.error})" if reply.error else bot.text(reply.tokens)
