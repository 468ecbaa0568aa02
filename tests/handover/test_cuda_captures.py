"""CUDA graphs that the host captures while a handover's tiles are digested."""

from threading import Event, Thread

import numpy as np
import pytest
import torch
from tests.handover.pair import WAIT_S, Pair, pair, tokens_of
from tests.handover.watched import ON, traced

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.requests import RecvState
from hicache_dbg.tracer.events import Copied, Health

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PAGES = 4
ADDED = 20


def added(graph: torch.cuda.CUDAGraph, value: torch.Tensor) -> int:
    """Replay a graph that adds 1 ``ADDED`` times; return by how much ``value`` grew."""
    before = int(value.item())
    graph.replay()
    return int(value.item()) - before


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first"])
def test_a_graph_captured_during_the_digests_of_both_ends_is_whole(*, warm: bool) -> None:
    """The threads digest every tile throughout the capture, whether or not they did so before."""
    value = torch.zeros(1, device="cuda")
    value.add_(1)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with traced(ON) as (sink, told), pair(by_hand=True, devices=("cuda:0", "cuda:0")) as made:
        made.decode.generation = PageAllocator(16, "decode").generation

        def digested(name: str) -> None:
            """Digest a request at prefill, from its offer, and at decode, from its landing."""
            pages, tokens = np.arange(PAGES), len(tokens_of(1, PAGES))
            receiving = made.decode.expect(name, made.alloc(PAGES), tokens)
            made.prefill.send(name, pages, tokens)
            made.decode.step()
            assert receiving.state is RecvState.GRANTED
            made.decode.landed(receiving)
            told.attachment.settle()

        if warm:
            digested("before")
        with torch.cuda.graph(graph, capture_error_mode="global"):
            for number in range(ADDED):
                value.add_(1)
                if number == ADDED // 2:
                    digested("during")
        assert added(graph, value) == ADDED
        told.flush()
        received = sink.of(Copied)
    assert len(received) == 2 * (1 + warm)  # two pools a request; prefill's wait for their write
    assert all(copy.tiles == copy.witnessed for copy in received)
    assert sink.of(Health)[-1].errors == {}


class Requests(Thread):
    """A thread that hands requests over until stopped."""

    def __init__(self, made: Pair) -> None:
        super().__init__(daemon=True)
        self.made, self.number = made, 0
        self.stop = Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Hand requests over."""
        try:
            while not self.stop.is_set():
                self.hand_over()
        except Exception as error:  # noqa: BLE001 (the test raises it)
            self.error = error

    def hand_over(self) -> None:
        """Hand one request over and free its pages at decode."""
        made, tokens, name = self.made, len(tokens_of(1, PAGES)), f"r{self.number}"
        room = made.alloc(PAGES)
        receiving = made.decode.expect(name, room, tokens)
        sending = made.prefill.send(name, np.arange(PAGES), tokens)
        made.decode.wait(receiving, WAIT_S)
        made.prefill.wait(sending, WAIT_S)
        made.pages.free(room)
        self.number += 1


def test_graphs_captured_while_pages_are_handed_over_are_whole() -> None:
    """NIXL waits for CUDA events as well; on a thread of its own that would end the process."""
    value = torch.zeros(1, device="cuda")
    value.add_(1)  # loads the kernel
    with traced(ON), pair(by_hand=False, pump=True, devices=("cuda:0", "cuda:0")) as made:
        requests = Requests(made)
        requests.hand_over()
        requests.start()
        for _ in range(4):
            graph, before = torch.cuda.CUDAGraph(), requests.number
            with torch.cuda.graph(graph, capture_error_mode="global"):
                for _ in range(ADDED):
                    value.add_(1)
                while requests.number < before + 2 and requests.error is None:
                    requests.join(0.001)
            assert added(graph, value) == ADDED
        requests.stop.set()
        requests.join(WAIT_S)
        if requests.error is not None:
            raise requests.error
