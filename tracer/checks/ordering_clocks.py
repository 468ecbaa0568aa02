"""Vector clocks over whoever does something in an order of its own: streams and host threads.

An actor's clock says, for each actor, up to which of its steps everything has happened before the
actor's next one. Events, gates, queues and locks carry stamps from one to the other. A stamp is one
number of its actor and a clock that is never changed, so nothing is copied to make one; what an
actor learns makes a new clock, and is a step of its own, so that two stamps of one step know the same.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, NewType

__all__ = ["ActorId", "Clocks", "Stamp", "Step"]

ActorId = NewType("ActorId", int)
#: How many things an actor has done.
Step = NewType("Step", int)
Clock = Mapping[ActorId, Step]

_NOTHING: Clock = {}


class Stamp(NamedTuple):
    """One step of an actor, and what of others had happened before it."""

    actor: ActorId
    step: Step
    clock: Clock


class Clocks:
    """The clock of each actor, and of each thing that carries one over.

    An actor or a carrier that was never seen has an empty clock: where tracing began later, what
    it would have ordered was not seen either.
    """

    def __init__(self) -> None:
        self._now: dict[ActorId, Stamp] = {}
        self._carried: dict[Hashable, Stamp] = {}

    def now(self, actor: ActorId) -> Stamp:
        """What ``actor`` did last, and what it knows."""
        stamp = self._now.get(actor)
        if stamp is None:
            stamp = self._now[actor] = Stamp(actor, Step(0), _NOTHING)
        return stamp

    def step(self, actor: ActorId) -> Stamp:
        """``actor`` does one more thing."""
        _, step, clock = self.now(actor)
        stamp = self._now[actor] = Stamp(actor, Step(step + 1), clock)
        return stamp

    def submit(self, thread: ActorId, stream: ActorId) -> Stamp:
        """``thread`` gives ``stream`` one more piece of work, which comes after all it did so far."""
        self.learn(stream, self.now(thread))
        return self.step(stream)

    def promise(self, actor: ActorId, of: Stamp, steps: int) -> Stamp:
        """``actor`` will do so many things, all of them after ``of``; the stamp of the first.

        They count as done for whoever learns of their steps, one by one.
        """
        self.learn(actor, of)
        first = self.step(actor)
        self._now[actor] = Stamp(actor, Step(first.step + steps - 1), first.clock)
        return first

    def record(self, actor: ActorId, carrier: Hashable) -> None:
        """``carrier`` stands for all that ``actor`` did so far: an event, a gate, a queued task."""
        self._carried[carrier] = self.now(actor)

    def wait(self, actor: ActorId, carrier: Hashable) -> None:
        """Whatever ``actor`` does from now on comes after what ``carrier`` stands for."""
        carried = self._carried.get(carrier)
        if carried is not None:
            self.learn(actor, carried)

    def meet(self, actor: ActorId, carrier: Hashable) -> None:
        """``actor`` held the lock ``carrier``: it comes after, and before, the lock's other holders."""
        self.wait(actor, carrier)
        self.record(actor, carrier)

    def meet_actor(self, actor: ActorId, other: ActorId) -> None:
        """``actor`` waited for all that ``other`` did so far."""
        self.learn(actor, self.now(other))

    def forget(self, carrier: Hashable) -> None:
        """Nobody will wait for ``carrier`` any more."""
        self._carried.pop(carrier, None)

    def learn(self, actor: ActorId, other: Stamp) -> None:
        """Whatever ``actor`` does next comes after ``other``, and after all that came before that."""
        if other.actor == actor:
            return
        _, step, clock = self.now(actor)
        if clock.get(other.actor, 0) >= other.step:
            return  # known, and with it all that it knew
        joined = {**clock, other.actor: other.step}
        for one, known in other.clock.items():
            if one != actor and joined.get(one, 0) < known:
                joined[one] = known
        self._now[actor] = Stamp(actor, Step(step + 1), joined)
