"""Buses that are closed at the end of the test."""

from collections.abc import Iterator

import pytest
from tests.tracer.bus_parts import MakeBus

from hicache_dbg.tracer.bus import Bus
from hicache_dbg.tracer.selfcheck import InternalErrors
from hicache_dbg.tracer.sink import Sink


@pytest.fixture
def make_bus() -> Iterator[MakeBus]:
    """Builds buses that are closed at the end."""
    built: list[Bus] = []

    def make(*sinks: Sink, capacity: int = 1000) -> Bus:
        built.append(Bus(sinks, capacity=capacity, errors=InternalErrors(reraise=False)))
        return built[-1]

    yield make
    for bus in built:
        bus.close(1.0)
