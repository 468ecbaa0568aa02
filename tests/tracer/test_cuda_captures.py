"""CUDA graphs that the host captures while the bus waits for an operation."""

import time
from collections.abc import Iterable

import pytest
import torch

from hicache_dbg.tracer.digest.mark import Mark
from hicache_dbg.tracer.events import Event, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Asking:
    """A record that asks for its mark whenever it is looked at."""

    def __init__(self) -> None:
        self.mark, self.asked = Mark(), 0

    def ready(self) -> bool:
        """Whether the mark has passed."""
        self.asked += 1
        return self.mark.query()

    def events(self) -> Iterable[Event]:
        """Nothing to tell."""
        return ()


def test_a_graph_that_is_captured_while_an_operation_is_waited_for_is_whole() -> None:
    """The bus queries its event throughout the capture, which goes on and is right."""
    sink = MemorySink()
    value, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        torch.cuda._sleep(1)  # loads the kernel, which a capture forbids
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        record = Asking()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            with torch.cuda.stream(beside):
                torch.cuda._sleep(1_000_000_000)  # half a second; not captured
            record.mark.record(beside.cuda_stream)
            assert runtime.session.bus.push(record)
            for _ in range(20):
                value.add_(1)
                time.sleep(0.005)
            asked = record.asked
        graph.replay()
        assert runtime.flush()
        assert value.item() == 20
        assert asked > 2
    assert sink.of(Health)[-1].errors == {}
