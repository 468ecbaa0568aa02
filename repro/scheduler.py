"""Continuous batching: turns are admitted while there is room, prefilled, and decoded together."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hicache_dbg.repro.cache import Cache, Lease
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.workload import Reply, Stop, Turn, Workload

__all__ = ["Scheduler"]

#: Errors that an engine or a model may raise for a bad turn; any other is a bug of this program.
_TURN_ERRORS = (ArithmeticError, LookupError, OSError, RuntimeError, ValueError)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A ready turn, and since when it has been waiting."""

    turn: Turn
    since: float


@dataclass(slots=True, eq=False)
class _Running:
    """A turn that is being answered."""

    lease: Lease
    since: float
    reply: list[int] = field(default_factory=list)

    @property
    def turn(self) -> Turn:
        return self.lease.turn

    @property
    def position(self) -> int:
        """Position of the reply's last token."""
        return len(self.turn.tokens) + len(self.reply) - 1


class Scheduler:
    """Answers a workload's turns, first come first served, at most ``max_running`` at a time.

    A turn that finds no room waits for those before it. Each step admits what fits and then decodes
    one token of every running turn. ``timeout`` (seconds) counts from when a turn is ready.
    ``on_answer`` is called after each answered turn.
    """

    def __init__(
        self,
        model: Model,
        cache: Cache,
        workload: Workload,
        *,
        max_running: int,
        timeout: float,
        on_answer: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._cache = cache
        self._workload = workload
        self._max_running = max_running
        self._timeout = timeout
        self._on_answer = on_answer
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Running] = []
        self._tables = torch.zeros(0, 0, dtype=torch.int64)
        self._step = 0

    def run(self) -> None:
        """Run until every session of the workload has ended."""
        while self._workload.open():
            now = self._clock()
            self._waiting.extend(_Waiting(turn, now) for turn in self._workload.ready(self._step))
            self._expire(now)
            self._admit()
            if self._running:
                self._decode()
            self._step += 1

    def _expire(self, now: float) -> None:
        """Fail turns that have taken longer than the timeout."""
        late = Reply((), Stop.ERROR, f"no reply within the timeout of {self._timeout:g} s")
        for running in [r for r in self._running if now - r.since > self._timeout]:
            self._drop(running, late)
        for waiting in [w for w in self._waiting if now - w.since > self._timeout]:
            self._waiting.remove(waiting)
            self._answer(waiting.turn, late)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            waiting = self._waiting[0]
            try:
                lease = self._cache.begin(waiting.turn)
            except _TURN_ERRORS as error:
                self._waiting.popleft()
                self._answer(waiting.turn, _failed(error))
                continue
            if lease is None and self._running:
                return  # running turns will make room
            self._waiting.popleft()
            if lease is None:
                self._answer(waiting.turn, Reply((), Stop.ERROR, "no room though nothing runs"))
            else:
                self._prefill(_Running(lease, waiting.since))

    def _prefill(self, running: _Running) -> None:
        lease, cached = running.lease, running.lease.cached
        tokens = torch.from_numpy(running.turn.tokens[cached:])
        try:
            token = self._model.prefill(tokens, cached, lease.table, lease.gate)
        except _TURN_ERRORS as error:
            self._drop(running, _failed(error))
            return
        self._running.append(running)
        self._tables = self._page_tables()
        self._take(running, token)

    def _decode(self) -> None:
        batch = list(self._running)
        tokens = torch.tensor([running.reply[-1] for running in batch])
        positions = torch.tensor([running.position for running in batch])
        try:
            following = self._model.decode(tokens, positions, self._tables)
        except _TURN_ERRORS as error:
            for running in batch:
                self._drop(running, _failed(error))
            return
        for running, token in zip(batch, following, strict=True):
            self._take(running, token)

    def _take(self, running: _Running, token: int) -> None:
        """Append a token to a reply, and finish the reply if the token ends it."""
        running.reply.append(token)
        stop = running.turn.stops.get(token)
        if stop is None and len(running.reply) == running.turn.max_tokens:
            stop = Stop.LENGTH
        if stop is not None:
            self._leave(running)
            self._finish(running, Reply(tuple(running.reply), stop))

    def _finish(self, running: _Running, reply: Reply) -> None:
        try:
            self._cache.finish(running.lease, reply.tokens)
        except _TURN_ERRORS as error:
            reply = _failed(error)
        self._answer(running.turn, reply)

    def _drop(self, running: _Running, reply: Reply) -> None:
        if running in self._running:
            self._leave(running)
        try:
            self._cache.abandon(running.lease)
        except _TURN_ERRORS as error:
            reply = _failed(error)
        self._answer(running.turn, reply)

    def _leave(self, running: _Running) -> None:
        self._running.remove(running)
        self._tables = self._page_tables()

    def _answer(self, turn: Turn, reply: Reply) -> None:
        if not self._workload.answered(turn, reply, self._step):
            self._cache.forget(turn.session)
        self._on_answer()

    def _page_tables(self) -> torch.Tensor:
        """Page tables of the running turns, (N, longest), padded with page 0."""
        if not self._running:
            return torch.zeros(0, 0, dtype=torch.int64)
        return torch.nn.utils.rnn.pad_sequence(
            [running.lease.table for running in self._running], batch_first=True
        )


def _failed(error: Exception) -> Reply:
    return Reply((), Stop.ERROR, f"{type(error).__name__}: {error}")
