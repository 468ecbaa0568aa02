"""Unusual but correct: no check accuses a correct engine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pools.caching import P, Tokens, group_of, sequences

from hicache_dbg.pools import transfer
from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.backends import BoundMove, copier_for
from hicache_dbg.pools.backups import WritePolicy
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.transfer import TransferError
from hicache_dbg.tracer.events import Copied, Finding, Health
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

READERS = sequences([[0, 0, 0], [0, 0, 1], [0, 1], [1, 2, 0, 1], [2], [2, 2, 2, 2]])
T = TypeVar("T")
POLICIES: tuple[WritePolicy, ...] = ("write_through", "write_through_selective", "write_back")


@contextmanager
def failing(*, to_host: bool) -> Iterator[None]:
    """Make copies of one direction fail after their first part."""

    @dataclass(eq=False)
    class Broken:
        """A copy that fails halfway."""

        bound: BoundMove
        stream: int | None = None
        done: list[tuple[int, ...]] = field(default_factory=list)

        def copy(self, layers: tuple[int, ...]) -> None:
            """Copy only the first part, then fail."""
            if self.done:
                raise OSError("link down")
            self.done.append(layers)
            self.bound.copy(layers[:1])
            if len(layers) > 1:
                raise OSError("link down")

        def mark(self) -> Callable[[], None]:
            """Mark nothing: nothing is queued."""
            return lambda: None

    class Copier:
        """The real copier, or the failing one."""

        in_flight = 0

        def __init__(self, device_type: str, backend: IoBackend) -> None:
            self.real = copier_for(device_type, backend)

        def bind(self, move: object, *, to_host: bool = to_host) -> object:
            """Return the failing copy for one direction."""
            bound = self.real.bind(move, to_host=to_host)  # type: ignore[arg-type]
            return Broken(bound) if to_host == broken else bound

    broken = to_host
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "copier_for", Copier)
        yield


def elsewhere(call: Callable[[], T]) -> T:
    """Call ``call`` on another thread and return its result."""
    got: list[T] = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join()
    return got[0]


class Users:
    """Users of two caches; the first cache is restarted at will."""

    def __init__(self, policy: WritePolicy, runtime: Runtime) -> None:
        self.policy: WritePolicy = policy
        self.runtime = runtime
        self.cache, self.other_cache = self.new(), self.new()

    def new(self) -> HiCacheController:
        """Return a cache that one and a half readers fill."""
        return HiCacheController(group_of(6, 9), policy=self.policy)

    def close(self) -> None:
        """Close both caches and ignore earlier failures."""
        for cache in (self.cache, self.other_cache):
            with suppress(TransferError):
                cache.close()

    def peek(self, tokens: Tokens) -> None:
        """Match and release."""
        self.cache.unlock(self.cache.match(tokens))

    def turn(self, tokens: Tokens, cache: HiCacheController | None = None) -> None:
        """Load the match, compute the rest."""
        cache = cache or self.cache
        match = cache.match(tokens)
        try:
            try:
                ticket = cache.load_back(match)
                for layer in cache.group.layer_ids:
                    cache.wait_layer(layer, ticket)
                cached = ticket.device_pages
            except (OutOfPages, TransferError):
                cached = match.device_pages
            own = cache.alloc_device(tokens.size // P - cached.size)
            cache.insert(tokens, np.concatenate([cached, own]))
        finally:
            cache.unlock(match)

    def abort(self, tokens: Tokens) -> None:
        """Request a load and leave before it arrives."""
        match = self.cache.match(tokens)
        try:
            self.cache.load_back(match)
        finally:
            self.cache.unlock(match)

    def give_up(self, tokens: Tokens) -> None:
        """Allocate pages and free them unused."""
        self.cache.free_device(self.cache.alloc_device(min(2, tokens.size // P)))

    def again(self, tokens: Tokens) -> None:
        """Recompute cached pages: the cache keeps its own and frees these."""
        self.cache.insert(tokens, self.cache.alloc_device(tokens.size // P))

    def flush(self, _tokens: Tokens) -> None:
        """Wait for all copies."""
        self.cache.flush()

    def restart(self, _tokens: Tokens) -> None:
        """Start a new cache, whose operations are numbered from 1 again."""
        with suppress(TransferError):
            self.cache.close()
        self.cache = self.new()

    def other(self, tokens: Tokens) -> None:
        """Use the other cache, whose pools have the same names."""
        self.turn(tokens, self.other_cache)

    def failed_load(self, tokens: Tokens) -> None:
        """Loads fail halfway, and readers recompute."""
        with failing(to_host=False):
            self.turn(tokens)
            self.cache.flush()

    def failed_backup(self, tokens: Tokens) -> None:
        """Backups fail halfway."""
        with failing(to_host=True):
            self.turn(tokens)
            self.cache.flush()

    def handed_over(self, tokens: Tokens) -> None:
        """Match on one thread, load on another, release on a third."""
        match = elsewhere(lambda: self.cache.match(tokens))
        try:
            with suppress(OutOfPages):
                elsewhere(lambda: self.cache.load_back(match) if match.host_pages.size else None)
        finally:
            elsewhere(lambda: self.cache.unlock(match))

    def crowded(self, tokens: Tokens) -> None:
        """The ring has no room for a while."""
        bus = self.runtime.session.bus
        capacity, bus._capacity = bus._capacity, 0
        try:
            self.turn(tokens)
        finally:
            bus._capacity = capacity

    def unwatched(self, tokens: Tokens) -> None:
        """Tracing is off for a while."""
        self.runtime.switch(on=False)
        try:
            self.turn(tokens)
        finally:
            self.runtime.switch(on=True)


DEEDS = (
    *(Users.turn, Users.turn, Users.turn, Users.peek, Users.abort, Users.give_up, Users.again),
    *(Users.flush, Users.restart, Users.other, Users.failed_load, Users.failed_backup),
    *(Users.handed_over, Users.crowded, Users.unwatched),
)


@settings(max_examples=60, deadline=None)
@given(
    deeds=st.lists(st.tuples(st.sampled_from(DEEDS), st.sampled_from(READERS)), max_size=25),
    policy=st.sampled_from(POLICIES),
    checksum=st.sampled_from(
        [Checksum.LOADS, Checksum.ENDS, Checksum.THREE, Checksum.SAMPLE, Checksum.OFF]
    ),
    ordered=st.booleans(),
)
def test_a_correct_engine_is_never_accused(
    deeds: list[tuple[Callable[[Users, Tokens], None], Tokens]],
    policy: WritePolicy,
    checksum: Checksum,
    *,
    ordered: bool,
) -> None:
    """Aborts, failures, restarts, thread handovers, gaps: no finding, no internal error."""
    sink = MemorySink()
    with Runtime.start(
        Settings(gate=Gate.ON, checksum=checksum, sample=0.5), sinks=[sink]
    ) as runtime:
        if ordered:
            runtime.attachment.lifetimes.host_access("begin", ())  # type: ignore[attr-defined]
        users = Users(policy, runtime)
        for deed, tokens in deeds:
            with suppress(TransferError, OutOfPages):
                deed(users, tokens)
        users.close()
        assert runtime.flush()
    assert [found.message for found in sink.of(Finding)] == []
    assert sink.of(Health)[-1].errors == {}
    assert all(copy.mismatched == 0 for copy in sink.of(Copied))
