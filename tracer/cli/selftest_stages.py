"""Rehearse faults under the tracer, each on its stage: one cache, ranks, or prefill and decode.

A stage runs a fault, or the same case without it, and returns the findings and what its readers
saw. To add a stage, add its name to :data:`~hicache_dbg.repro.faults.base.Stage` and a line to
:data:`STAGES`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.repro.faults import aborts
from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.repro.faults.handover import Sent, decode, prefill
from hicache_dbg.repro.faults.rehearsal import Rehearsed, rehearse
from hicache_dbg.repro.faults.storage_rehearsal import rehearse_storage
from hicache_dbg.tracer.attach.hicache import HiCacheAttachment
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Event, Topic
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

__all__ = ["STAGES", "Run"]

Run = Callable[[Fault | None, Layout, int], tuple[list[Event], Rehearsed]]
"""Given a fault, the host layout and a seed: all events, what was found among them, and what readers saw."""

RANKS = 2


@contextmanager
def _runtime(sink: MemorySink, **more: int) -> Iterator[tuple[Session, HiCacheAttachment]]:
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS, **more)  # type: ignore[arg-type]
    with Runtime.start(settings, sinks=[sink]) as runtime:
        attachment = runtime.attachment
        assert isinstance(attachment, HiCacheAttachment)  # noqa: S101 - what Runtime builds by default
        yield runtime.session, attachment
        runtime.flush()


def cache(fault: Fault | None, layout: Layout, seed: int) -> tuple[list[Event], Rehearsed]:
    """Rehearse in one cache with one tracer."""
    sink = MemorySink()
    with _runtime(sink) as (_, attachment):
        rehearsed = rehearse(fault, attachment.lifetimes.host_access, layout=layout, seed=seed)
    return list(sink.events), rehearsed


def ranks(fault: Fault | None, layout: Layout, seed: int) -> tuple[list[Event], Rehearsed]:
    """Rehearse the same turns on each rank, with the fault on the last, and join the recordings."""
    sinks, rehearsed = [], None
    for rank in range(RANKS):
        sink = MemorySink()
        own_fault = fault if rank == RANKS - 1 else None
        with _runtime(sink, rank=rank, ranks=RANKS) as (session, attachment):

            def call(name: str, session: Session = session) -> None:
                session.state(Topic.COLLECTIVE, (name,))

            rehearsed = rehearse(
                own_fault,
                attachment.lifetimes.host_access,
                layout=layout,
                seed=seed,
                collective=call,
            )
        sinks.append(sink)
    assert rehearsed is not None  # noqa: S101 - there is a rank
    events = [event for sink in sinks for event in sink.events]
    return [*events, *join([sink.events for sink in sinks])], rehearsed


def two_ends(
    send: Callable[[Session, Layout], Sent],
    take: Callable[[Session, Sent, Fault | None, Layout], Rehearsed],
) -> Run:
    """Rehearse prefill, then decode, each with its own tracer, and join the recordings."""

    def run(fault: Fault | None, layout: Layout, _seed: int) -> tuple[list[Event], Rehearsed]:
        sender, receiver = MemorySink(), MemorySink()
        with _runtime(sender) as (session, _):
            sent = send(session, layout)
        with _runtime(receiver) as (session, _):
            rehearsed = take(session, sent, fault, layout)
        events = [sender.events, receiver.events]
        return [*sender.events, *receiver.events, *join(events)], rehearsed

    return run


def storage(fault: Fault | None, layout: Layout, seed: int) -> tuple[list[Event], Rehearsed]:
    """Rehearse in a cache over a file store, with a restart in the middle."""
    sink = MemorySink()
    with _runtime(sink) as (_, attachment):
        access = attachment.lifetimes.host_access
        rehearsed = rehearse_storage(fault, access, layout=layout, seed=seed)
    return list(sink.events), rehearsed


STAGES: Mapping[str, Run] = MappingProxyType(
    {
        "cache": cache,
        "ranks": ranks,
        "handover": two_ends(prefill, decode),
        "aborts": two_ends(partial(prefill, given_up=aborts.GIVEN_UP), aborts.decode),
        "storage": storage,
    }
)
