"""A sink that keeps events in memory: for the verbs of the command line and for tests."""

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
        """Append ``events``."""
        self.events.extend(events)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
