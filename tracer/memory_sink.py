"""A sink that keeps events: for the verbs of the command, and for tests of code that is traced."""

from collections.abc import Sequence
from typing import TypeVar

from hicache_dbg.tracer.events import Event

__all__ = ["MemorySink"]

E = TypeVar("E", bound=Event)


class MemorySink:
    """Keeps every event in order of arrival."""

    name = "memory"

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, events: Sequence[Event]) -> None:
        """Keep ``events``."""
        self.events.extend(events)

    def close(self) -> None:
        """Nothing to release."""

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
