"""Vector clocks over everything that acts in an order of its own: streams and host threads.

An actor's clock says, for each other actor, up to which step everything happened before the actor's
next step. Events, gates, queues and locks carry stamps from one actor to another. A stamp is a step
number and an immutable clock, so creating one copies nothing. What an actor learns makes a new
clock and counts as a step, so two stamps of the same step know the same.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, NewType
from weakref import ref

__all__ = ["ActorId", "Clocks", "Stamp", "Step"]

ActorId = NewType("ActorId", int)
#: Number of things an actor has done.
Step = NewType("Step", int)
Clock = Mapping[ActorId, Step]

_NOTHING: Clock = {}


class Stamp(NamedTuple):
    """One step of an actor, and what had happened before it elsewhere."""

    actor: ActorId
    step: Step
    clock: Clock


class Clocks:
    """The clock of each actor, and of each carrier that passes one on.

    An actor or carrier that was never seen has an empty clock: if tracing started later, what it
    would have ordered was not seen either.
    """

    def __init__(self) -> None:
        self._now: dict[ActorId, Stamp] = {}
        self._carried: dict[Hashable, Stamp] = {}

    def now(self, actor: ActorId) -> Stamp:
        """Return the last step of ``actor``, and what it knows."""
        stamp = self._now.get(actor)
        if stamp is None:
            stamp = self._now[actor] = Stamp(actor, Step(0), _NOTHING)
        return stamp

    def step(self, actor: ActorId) -> Stamp:
        """Advance ``actor`` by one step."""
        _, step, clock = self.now(actor)
        stamp = self._now[actor] = Stamp(actor, Step(step + 1), clock)
        return stamp

    def submit(self, thread: ActorId, stream: ActorId) -> Stamp:
        """Advance ``stream`` by work from ``thread``, ordered after all the thread did so far."""
        self.learn(stream, self.now(thread))
        return self.step(stream)

    def promise(self, actor: ActorId, of: Stamp, steps: int) -> Stamp:
        """Reserve ``steps`` future steps of ``actor`` after ``of``; return the first one's stamp.

        Others learn of these steps one by one.
        """
        self.learn(actor, of)
        first = self.step(actor)
        self._now[actor] = Stamp(actor, Step(first.step + steps - 1), first.clock)
        return first

    def carrier(self, thing: object) -> Hashable:
        """Return the carrier of an object (an event, a lock's owner), which is dropped with it."""
        return ref(thing, self.forget)

    def record(self, actor: ActorId, carrier: Hashable) -> None:
        """Let ``carrier`` (an event, a gate, a queued task) stand for all ``actor`` did so far."""
        self._carried[carrier] = self.now(actor)

    def wait(self, actor: ActorId, carrier: Hashable) -> None:
        """Order whatever ``actor`` does next after what ``carrier`` stands for."""
        carried = self._carried.get(carrier)
        if carried is not None:
            self.learn(actor, carried)

    def meet(self, actor: ActorId, carrier: Hashable) -> None:
        """Record that ``actor`` held the lock ``carrier``, which orders it with other holders."""
        self.wait(actor, carrier)
        self.record(actor, carrier)

    def meet_actor(self, actor: ActorId, other: ActorId) -> None:
        """Record that ``actor`` waited for everything ``other`` did so far."""
        self.learn(actor, self.now(other))

    def forget(self, carrier: Hashable) -> None:
        """Drop a ``carrier`` that nobody will wait for any more."""
        self._carried.pop(carrier, None)

    def learn(self, actor: ActorId, other: Stamp) -> None:
        """Order whatever ``actor`` does next after ``other``, and after all that came before it."""
        if other.actor == actor:
            return
        _, step, clock = self.now(actor)
        if clock.get(other.actor, 0) >= other.step:
            return  # already known, and with it everything it knew
        joined = {**clock, other.actor: other.step}
        for one, known in other.clock.items():
            if one != actor and joined.get(one, 0) < known:
                joined[one] = known
        self._now[actor] = Stamp(actor, Step(step + 1), joined)
