"""Chats as a workload: every chat is asked all of its questions, whatever it answers."""

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
    """Chats side by side, a turn of each after the other.

    There are ``config.sessions`` of ``config.rounds`` turns, or as many as there are. The next
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

    def ready(self, step: int) -> Iterable[Turn]:  # noqa: ARG002 - nobody takes time to think
        """Hand out the turns of chats that were answered, in that order."""
        while self._due:
            yield self._due.popleft()

    def answered(self, turn: Turn, reply: Reply, step: int) -> bool:  # noqa: ARG002 - as above
        """Note the reply; the chat's next question is asked after it."""
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
        """Whether some chat has not ended."""
        return any(transcript.end is None for transcript in self.transcripts.values())

    def longest(self) -> int:
        """The length of a chat whose replies are all as long as can be."""
        return max(map(self._longest, self._chats))

    def _longest(self, questions: tuple[str, ...]) -> int:
        first, *others = questions[: self._rounds]
        asked = len(self._bot.opening(first))
        asked += sum(len(self._bot.following(other, ended=False)) for other in others)
        return asked + self._rounds * self._most

    def progress(self) -> tuple[int, int]:
        """Turns that are over or will not be, and turns in all."""
        return self._answered, len(self._chats) * self._rounds

    def _turn(self, chat: int, number: int, tokens: Iterable[int]) -> Turn:
        given = np.fromiter(tokens, np.int64)
        return Turn(chat, number, given, self._most, {self._bot.end: Stop.END})


def answered_alone(turn: Turn) -> Reply:
    """What the model says to ``turn`` with everything computed anew, in its library's own cache."""
    bot = load()
    tokens = bot.reply(turn.tokens.tolist(), turn.max_tokens)
    return Reply(tuple(tokens), turn.stops.get(tokens[-1], Stop.LENGTH))


def exchanges(truth: Truth, got: Mapping[int, Transcript]) -> Iterator[Exchange]:
    """Each reply of ``got`` beside the one that should have been given."""
    bot = load()
    for chat, transcript in got.items():
        for turn, reply in enumerate(transcript.replies):
            expected = truth[chat].replies[turn]
            yield Exchange(
                chat, turn, CHATS[chat][turn], *(_said(bot, one) for one in (expected, reply))
            )


def _said(bot: Chatbot, reply: Reply) -> str:
    return f"({reply.error})" if reply.error else bot.text(reply.tokens)
