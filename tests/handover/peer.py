"""A process with one end, for tests that kill or stop it.

    python -m tests.handover.peer prefill PORT SIGKILL|SIGSTOP
    python -m tests.handover.peer decode PORT

Prefill hands one request over and gets that signal in the middle of the next one's write, with half
of the tiles written. Decode takes one request over and waits.
"""

import signal
import sys
from multiprocessing.connection import Client, Connection

import numpy as np
from tests.handover.pair import P, compute, tokens_of
from tests.pools.caching import group_of

from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.repro.pd_wire import DyingWire


def prefill(connection: Connection, end_by: signal.Signals) -> None:
    """Hand ``r1`` over, then half of ``r2``."""
    group = group_of(16)
    link = Link("prefill", group, connection)
    link.agree()
    with PrefillEnd(link) as end:
        for name in (1, 2):
            tokens, pages = tokens_of(name, 2), np.array([name, name + 5])
            compute(group, tokens, pages)
            if name == 2:
                link.wire = DyingWire(link.wire, 1, lambda: None, end_by)
            end.wait(end.send(f"r{name}", pages, 2 * P), 60.0)


def decode(connection: Connection) -> None:
    """Take ``r1`` over."""
    group = group_of(16)
    link = Link("decode", group, connection)
    link.agree()
    with DecodeEnd(link, lambda _pages: None) as end:
        end.wait(end.expect("r1", np.array([0, 1]), 2 * P), 60.0)
        signal.pause()


if __name__ == "__main__":
    role, port, *rest = sys.argv[1:]
    with Client(("127.0.0.1", int(port))) as channel:
        if role == "prefill":
            prefill(channel, signal.Signals[rest[0]])
        else:
            decode(channel)
