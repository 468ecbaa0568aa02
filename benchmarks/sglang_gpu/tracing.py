"""An attachment whose events can be read, and the rows of the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hicache_dbg.tracer.attach.sglang.start import trace
from hicache_dbg.tracer.events import Copied, Event, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

__all__ = ["Row", "Traced", "copies", "findings"]


@dataclass(frozen=True)
class Row:
    """One line of the table; ``kept`` says whether the goal is met."""

    part: str
    case: str
    result: str
    goal: str
    kept: bool
    value: float | None = None


class Traced:
    """SGLang with us attached under these settings, collecting events."""

    def __init__(self, checksum: Checksum = Checksum.LOADS, **given: Any) -> None:
        self._sink = MemorySink()
        settings = Settings(gate=Gate.ON, checksum=checksum, **given)
        self.attachment = trace(settings, sinks=[self._sink])

    def take(self) -> list[Event]:
        """Return the events since the last call, once everything so far is judged."""
        torch.cuda.synchronize()
        session = self.attachment.observer.session()
        assert session is None or session.bus.flush(20)
        events, self._sink.events = self._sink.events, []
        return events

    def close(self) -> list[Event]:
        """Detach, and return the remaining events."""
        events = self.take()
        session = self.attachment.observer.session()
        self.attachment.detach()
        if session is not None:
            session.close()
        return events + self._sink.events

    def errors(self) -> dict[str, int]:
        """Return the counts of our own failures so far."""
        session = self.attachment.observer.session()
        health: Health | None = session.bus.health() if session is not None else None
        return dict(health.errors) if health is not None else {}

    def overhead_s(self) -> float:
        """Return the seconds that the instrument says it has cost SGLang's threads so far."""
        session = self.attachment.observer.session()
        return session.probe.overhead_s if session is not None else 0.0


def copies(events: Sequence[Event]) -> list[Copied]:
    """Return the copies among ``events``."""
    return [event for event in events if isinstance(event, Copied)]


def findings(events: Sequence[Event]) -> list[Finding]:
    """Return the findings among ``events``."""
    return [event for event in events if isinstance(event, Finding)]
