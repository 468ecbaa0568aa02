"""Simulated streams execute in every order that a device allows, and in no other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.pools.streams import (
    CudaStreams,
    SimulatedStreams,
    StreamError,
    Streams,
    marker,
)


def log_of(streams: Streams, waits: bool) -> list[str]:
    """Return what a producer and a consumer do, in order of execution."""
    log: list[str] = []
    producer, consumer = streams.stream("producer"), streams.stream("consumer")
    for name in ("write 0", "write 1"):
        producer.submit(lambda name=name: log.append(name))  # type: ignore[misc]
    if waits:
        consumer.wait_for(producer.record())
    consumer.submit(lambda: log.append("read"))
    streams.synchronize()
    return log


@given(seed=st.integers(0, 10_000))
def test_a_wait_holds_in_every_order(seed: int) -> None:
    """With any seed, a consumer that waits reads after the writes, which are in order."""
    assert log_of(SimulatedStreams(seed), waits=True) == ["write 0", "write 1", "read"]


def test_a_missing_wait_shows_under_some_seed() -> None:
    """Without the wait all three orders occur, and each seed reproduces its order."""
    orders = [log_of(SimulatedStreams(seed), waits=False).index("read") for seed in range(40)]
    assert set(orders) == {0, 1, 2}
    assert orders == [
        log_of(SimulatedStreams(seed), waits=False).index("read") for seed in range(40)
    ]


@given(
    seed=st.integers(0, 10_000),
    program=st.lists(
        st.one_of(
            st.tuples(st.just("work"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("sync"), st.integers(0, 3), st.integers(0, 3)),
        ),
        max_size=30,
    ),
)
def test_work_never_overtakes_what_it_waits_for(
    seed: int, program: list[tuple[str, int, int]]
) -> None:
    """For any program of work and waits, each piece runs once, after all it depends on."""
    streams = SimulatedStreams(seed)
    done: list[int] = []
    last: dict[int, set[int]] = {stream: set() for stream in range(4)}
    needs: dict[int, set[int]] = {}
    for number, (what, stream, other) in enumerate(program):
        here = streams.stream(str(stream))
        if what == "work":
            needs[number] = set(last[stream])
            last[stream].add(number)
            here.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        else:
            here.wait_for(streams.stream(str(other)).record())
            last[stream] |= last[other]
    streams.synchronize()
    assert sorted(done) == sorted(needs)
    for position, number in enumerate(done):
        assert needs[number] <= set(done[:position])


def test_an_event_runs_no_more_than_it_must_of_its_own_stream() -> None:
    """Synchronising with an event leaves later work of its stream pending."""
    streams = SimulatedStreams(1)
    log: list[str] = []
    stream = streams.stream("only")
    stream.submit(lambda: log.append("before"))
    event = stream.record()
    stream.submit(lambda: log.append("after"))
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert log == ["before"]
    streams.synchronize()
    assert log == ["before", "after"]
    assert streams.order == ["only"] * 3


def test_streams_that_wait_for_each_other_are_found() -> None:
    """A cycle of waits is an error that names the streams, not a hang."""
    streams, others = SimulatedStreams(), SimulatedStreams()
    never = others.stream("elsewhere").record()
    streams.stream("stuck").wait_for(never)
    streams.stream("stuck").submit(lambda: None)
    with pytest.raises(StreamError, match=r"streams \['stuck'\] hold work"):
        streams.synchronize()


def test_the_cpu_has_nothing_to_mark() -> None:
    """On the CPU work is complete when it returns, so a copy has nothing to wait for."""
    assert marker(torch.device("cpu"))() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_streams_keep_their_order() -> None:
    """On CUDA a stream that waits for another's event sees what was written before it."""
    streams = CudaStreams(torch.device("cuda"))
    source, target = torch.zeros(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    torch.cuda.synchronize()
    streams.stream("a").submit(lambda: source.fill_(7.0))
    streams.stream("b").wait_for(streams.stream("a").record())
    streams.stream("b").submit(lambda: target.copy_(source))
    streams.synchronize()
    assert bool((target == 7.0).all())
