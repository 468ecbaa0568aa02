"""Stores that are written and give nothing back, answer with errors, late, or not at all."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from threading import Event

from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import put
from hicache_dbg.repro.faults.storage_places import engine_of, storage_of
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

#: How long a store hangs, as a multiple of a reader's timeout.
HANGS = 2


def _never_hit(target: Target) -> None:
    """Lookups ask under another name than stores use."""
    put(engine_of(target).backend, "exists", lambda names: [False] * len(names))


def _refuses(target: Target) -> None:
    """A flag that was accepted when the file was opened makes every write fail."""

    def refused(records: Iterable[Record]) -> Iterator[PageResult]:
        for _ in records:
            yield PageResult(PageState.FAILED, "write: Invalid argument", errno=errno.EINVAL)

    put(engine_of(target).backend, "put", refused)


def _hangs(target: Target) -> None:
    """The store takes a question and does not answer it for a long time."""
    storage = storage_of(target)
    backend, never = storage.engine.backend, Event()
    own = backend.get

    def get(records: Sequence[Record]) -> Iterator[PageResult]:
        never.wait(HANGS * storage.timeout)
        yield from own(records)

    put(backend, "get", get)


def _falls_back(target: Target) -> None:
    """Host memory could not be registered, and a warning was all there was."""
    put(engine_of(target).backend, "fallback", "host memory is not registered")  # type: ignore[arg-type]


FAULTS = (
    Fault(
        name="store_is_written_and_never_hit",
        cls=FaultClass.DEAD_TIER,
        summary="pages are stored under one name and looked up under another",
        install=_never_hit,
        stage="storage",
    ),
    Fault(
        name="store_refuses_every_write",
        cls=FaultClass.DEAD_TIER,
        summary="every write ends with errno 22, and the service says it is healthy",
        install=_refuses,
        stage="storage",
    ),
    Fault(
        name="store_hangs",
        cls=FaultClass.DEAD_TIER,
        summary="the store takes questions and does not answer",
        install=_hangs,
        stage="storage",
    ),
    Fault(
        name="store_takes_the_slow_way",
        cls=FaultClass.DEAD_TIER,
        summary="bytes go through a second buffer, because host memory could not be registered",
        install=_falls_back,
        stage="storage",
    ),
)
