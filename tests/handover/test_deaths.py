"""One end is killed at each step of a request: the other is told, in bounded time, and keeps nothing."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import numpy as np
import pytest
from tests.handover.pair import WAIT_S, HandWire, P, arrived, links, require_nixl, tokens_of
from tests.handover.victim import DECODE_STEPS, PREFILL_STEPS, run
from tests.pools.caching import group_of

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.errors import HandoverError, PeerLost
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.wire import NixlWire


@pytest.fixture(scope="module")
def group() -> Iterator[PoolGroup]:
    """The survivor's pools."""
    with closing(group_of(16)) as made:
        yield made


def _receive(connection: Connection, group: PoolGroup, pages: PageAllocator) -> None:
    link = Link("decode", group, connection)
    link.agree()
    with DecodeEnd(link, pages.free) as end:
        mine = pages.alloc(2)
        end.wait(end.expect("r", mine, 2 * P), WAIT_S)
        assert arrived(group, tokens_of(1, 2), mine)
        pages.free(mine)


def _send(connection: Connection, group: PoolGroup, _pages: PageAllocator) -> None:
    link = Link("prefill", group, connection)
    link.agree()
    with PrefillEnd(link) as end:
        end.wait(end.send("r", np.array([3, 5]), 2 * P), WAIT_S)


@pytest.mark.service
@pytest.mark.parametrize(
    ("role", "step", "late"),
    [("prefill", step, late) for step in PREFILL_STEPS for late in (False, True)]
    + [("decode", step, late) for step in DECODE_STEPS for late in (False, True)],
)
def test_a_death_at_any_step_leaves_the_other_end_whole(
    group: PoolGroup, role: str, step: str, *, late: bool
) -> None:
    """The request is right or fails with a handover's error; every page and descriptor is back."""
    require_nixl()
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.handover.victim"])
    pages = PageAllocator(16, "survivor")
    with Listener(("127.0.0.1", 0)) as listener:
        listener._listener._socket.settimeout(WAIT_S)  # type: ignore[attr-defined]
        victim = context.Process(target=run, args=(role, step, late, listener.address[1]))
        victim.start()
        connection = listener.accept()
    began = time.monotonic()
    with suppress(HandoverError):
        (_receive if role == "prefill" else _send)(connection, group, pages)
    assert time.monotonic() - began < WAIT_S / 2
    victim.join(WAIT_S)
    assert victim.exitcode == -9
    assert pages.available == 16
    assert connection.closed


def test_an_agent_that_nixl_refuses_is_a_handovers_error(group: PoolGroup) -> None:
    """A peer may die between its hello and the meeting; the link is closed then."""
    require_nixl()
    wire = NixlWire([(group.mirrors[0].device.buffers["latent"].tensors[0].data_ptr(), 64, 0)])
    with closing(wire), pytest.raises(HandoverError, match="NIXL: "):
        wire.meet(b"no agent", np.empty(0, np.uint64))


def test_a_connection_to_a_peer_that_is_gone_makes_no_link(group: PoolGroup) -> None:
    """Its address cannot be told any more, so neither can its host."""
    with Listener(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(("127.0.0.1", listener.address[1]))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection = listener.accept()
        raw.close()  # with a reset
        with pytest.raises(PeerLost):
            Link("decode", group, connection)


def test_ends_that_come_and_go_leave_nothing_behind() -> None:
    """No descriptor and no thread, however often they connect."""
    ours, theirs = group_of(4), group_of(4)

    def come_and_go(times: int) -> tuple[int, int]:
        """Return how many descriptors and threads there are then."""
        for _ in range(times):
            a, b, _ = links(ours, theirs, (HandWire(), HandWire()))
            a.theirs, b.theirs = b.ours, a.ours
            with PrefillEnd(a) as prefill, DecodeEnd(b, lambda _pages: None) as decode:
                decode.expect("r", np.arange(1), P)
                prefill.send("r", np.arange(1), P)
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    descriptors, threads = come_and_go(3)
    after = come_and_go(60)
    assert after[0] <= descriptors
    assert after[1] <= threads
