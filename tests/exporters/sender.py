"""Send copies at a given rate through the sinks that the environment asks for.

Run as a script with ``RATE SECONDS``. Once everything is delivered, it prints one line of JSON with
what it sent and what became of it in each sink; it exits when its standard input closes.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from tests.exporters.samples import copied, started

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.events import Event
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.settings import Settings
from hicache_dbg.tracer.sinks import build_sinks

PULSE_S = 0.001
DRAIN_S = 100.0


class Delivery(msgspec.Struct):
    """What became of the events that were offered to a sink."""

    delivered: int
    lost: dict[str, int]
    failures: int
    delivered_in_time: int  #: until the last event was sent: the rest waited in the queue


class Report(msgspec.Struct):
    """The result of a sender."""

    copies: int
    events: int
    seconds: float
    longest_publish_s: float
    dropped: dict[str, int]
    sinks: dict[str, Delivery] = {}


@dataclass(slots=True)
class Pace:
    """Yields the numbers from 1 up, each at its time."""

    rate: int
    seconds: float
    begun: float = field(default_factory=time.perf_counter)

    def __iter__(self) -> Iterator[int]:
        number, total = 0, round(self.rate * self.seconds)
        while number < total:
            due = min(total, int((time.perf_counter() - self.begun) * self.rate))
            while number < due:
                number += 1
                yield number
            time.sleep(PULSE_S)


def publish(bus: Bus, event: Event) -> float:
    """Publish an event and return how long the call took."""
    begun = time.perf_counter()
    bus.publish(event)
    return time.perf_counter() - begun


def main(rate: int, seconds: float) -> None:
    """Send, wait until every sink has received everything, and report."""
    settings = Settings.from_environ()
    bus = Bus(
        build_sinks(settings, lambda: ()).sinks, capacity=settings.queue, errors=InternalErrors()
    )
    bus.publish(started())
    pattern, pace, longest, number = copied(), Pace(rate, seconds), 0.0, 0
    for number in pace:
        event = msgspec.structs.replace(pattern, h=number, op_id=number, time_ns=time.time_ns())
        longest = max(longest, publish(bus, event))
    took = time.perf_counter() - pace.begun
    in_time = {outbox.name: outbox.delivered for outbox in bus._outboxes}
    bus.flush(DRAIN_S)
    health = bus.health()
    report = Report(number, health.events, took, longest, health.dropped)
    for outbox in bus._outboxes:
        report.sinks[outbox.name] = Delivery(
            outbox.delivered, outbox.losses(), outbox.failures, in_time[outbox.name]
        )
    print(json.dumps(msgspec.to_builtins(report)), flush=True)  # noqa: T201 - read by the test
    sys.stdin.read()
    bus.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
