"""Two processes: one is killed or stopped midway; the other is never blocked."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import numpy as np
import pytest
from tests.handover.pair import WAIT_S, P, arrived, compute, require_nixl, tokens_of
from tests.pools.caching import group_of

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import PeerLost
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.prefill import PrefillEnd

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[2]


@contextmanager
def _other(*arguments: str) -> Iterator[tuple[Connection, subprocess.Popen[bytes]]]:
    """Start another process and return it with the channel to it over the loopback."""
    require_nixl()
    with Listener(("127.0.0.1", 0)) as listener:
        listener._listener._socket.settimeout(WAIT_S)  # type: ignore[attr-defined]
        role, *rest = arguments
        port = str(listener.address[1])
        command = [sys.executable, "-m", "tests.handover.peer", role, port, *rest]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            yield listener.accept(), process
        finally:
            process.kill()
            process.wait(WAIT_S)


def _decode(connection: Connection, silence_s: float = WAIT_S) -> tuple[DecodeEnd, PageAllocator]:
    group = group_of(16)
    link = Link("decode", group, connection, silence_s=silence_s)
    link.agree()
    pages = PageAllocator(16, "decode")
    return DecodeEnd(link, pages.free), pages


def test_a_prefill_killed_in_the_middle_of_a_write_leaves_nothing_behind() -> None:
    """Earlier requests are right; the half-written one fails at once, and all its pages come back."""
    with _other("prefill", "SIGKILL") as (connection, _):
        end, pages = _decode(connection)
        with end:
            first = end.expect("r1", pages.alloc(2), 2 * P)
            end.wait(first, WAIT_S)
            assert arrived(end.link.group, tokens_of(1, 2), first.pages)
            second = end.expect("r2", pages.alloc(2), 2 * P)
            with pytest.raises(PeerLost, match="its end of the channel is closed"):
                end.wait(second, WAIT_S)
            pages.free(first.pages)
        assert not end.quarantined.size
        assert pages.available == 16


def test_a_killed_decode_is_told_to_prefill() -> None:
    """The next request is refused in bounded time, and prefill closes."""
    with _other("decode") as (connection, process):
        group = group_of(16)
        link = Link("prefill", group, connection, silence_s=WAIT_S)
        link.agree()
        with PrefillEnd(link) as end:
            compute(group, tokens_of(1, 2), np.array([3, 4]))
            end.wait(end.send("r1", np.array([3, 4]), 2 * P), WAIT_S)
            process.kill()
            process.wait(WAIT_S)
            with pytest.raises(PeerLost):
                end.wait(end.send("r2", np.array([5, 6]), 2 * P), WAIT_S)


def test_a_prefill_that_stops_is_lost_and_its_pages_stay_held_until_it_is_gone() -> None:
    """A stopped process may resume writing, so only its exit frees pages."""
    with _other("prefill", "SIGSTOP") as (connection, process):
        end, pages = _decode(connection, silence_s=5.0)
        with end:
            first = end.expect("r1", pages.alloc(2), 2 * P)
            end.wait(first, WAIT_S)
            second = end.expect("r2", pages.alloc(2), 2 * P)
            began = time.monotonic()
            with pytest.raises(PeerLost, match="said nothing for"):
                end.wait(second, WAIT_S)
            assert time.monotonic() - began < WAIT_S / 2
            assert end.quarantined.tolist() == second.pages.tolist()
            process.kill()
            process.wait(WAIT_S)
            until = time.monotonic() + WAIT_S
            while end.quarantined.size and time.monotonic() < until:
                pass
            assert pages.available == 14  # all but the first request's
