"""Vector clocks over whoever does something in an order of its own: streams and host threads.

An actor's clock says, for each actor, up to which of its steps everything has happened before the
actor's next one. Events, gates, queues and locks carry clocks from one to the other.
"""

from collections.abc import Hashable
from typing import NamedTuple, NewType

__all__ = ["ActorId", "Clocks", "Stamp", "Step"]

ActorId = NewType("ActorId", int)
#: How many things an actor has done.
Step = NewType("Step", int)
Clock = dict[ActorId, Step]


class Stamp(NamedTuple):
    """One step of an actor, and what had happened before it."""

    actor: ActorId
    step: Step
    clock: Clock


class Clocks:
    """The clock of each actor, and of each thing that carries one over.

    An actor or a carrier that was never seen has an empty clock: where tracing began later, what
    it would have ordered was not seen either.
    """

    def __init__(self) -> None:
        self._actors: dict[ActorId, Clock] = {}
        self._carried: dict[Hashable, Clock] = {}

    def step(self, actor: ActorId) -> Stamp:
        """``actor`` does one more thing."""
        clock = self._actors.get(actor)
        if clock is None:
            clock = self._actors[actor] = {}
        step = clock[actor] = Step(clock.get(actor, Step(0)) + 1)
        return Stamp(actor, step, dict(clock))

    def submit(self, thread: ActorId, stream: ActorId) -> Stamp:
        """``thread`` gives ``stream`` one more piece of work, which comes after all it did so far."""
        _join(self._actors.setdefault(stream, {}), self._actors.get(thread, {}))
        return self.step(stream)

    def record(self, actor: ActorId, carrier: Hashable) -> None:
        """``carrier`` stands for all that ``actor`` did so far: an event, a gate, a queued task."""
        self._carried[carrier] = dict(self._actors.get(actor, {}))

    def wait(self, actor: ActorId, carrier: Hashable) -> None:
        """Whatever ``actor`` does from now on comes after what ``carrier`` stands for."""
        _join(self._actors.setdefault(actor, {}), self._carried.get(carrier, {}))

    def meet(self, actor: ActorId, carrier: Hashable) -> None:
        """``actor`` held the lock ``carrier``: it comes after, and before, the lock's other holders."""
        clock, carried = self._actors.setdefault(actor, {}), self._carried.get(carrier)
        if carried == clock:
            return  # nothing happened since it held the lock itself
        if carried:
            _join(clock, carried)
        self._carried[carrier] = dict(clock)

    def meet_actor(self, actor: ActorId, other: ActorId) -> None:
        """``actor`` waited for all that ``other`` did so far."""
        _join(self._actors.setdefault(actor, {}), self._actors.get(other, {}))

    def forget(self, carrier: Hashable) -> None:
        """Nobody will wait for ``carrier`` any more."""
        self._carried.pop(carrier, None)


def _join(into: Clock, other: Clock) -> None:
    for actor, step in other.items():
        if into.get(actor, 0) < step:
            into[actor] = step
