"""A process with one end that kills itself at a given step, for tests of the other end."""

import os
import signal
from multiprocessing.connection import Client
from typing import Any

import numpy as np
from tests.handover.pair import P, compute, tokens_of
from tests.pools.caching import group_of

from hicache_dbg.pools.handover.channel import Channel
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.handover.wire import NixlWire

__all__ = ["DECODE_STEPS", "PREFILL_STEPS", "run"]

Step = tuple[type, str]

PREFILL_STEPS: dict[str, Step] = {
    "hello": (Link, "agree"),
    "meeting": (NixlWire, "meet"),
    "offer": (PrefillEnd, "offer"),
    "preparation": (NixlWire, "prepare"),
    "write": (NixlWire, "begin"),
    "release": (NixlWire, "release"),
    "end": (PrefillEnd, "finish"),
    "close": (Link, "close"),
}
DECODE_STEPS: dict[str, Step] = {
    "hello": (Link, "agree"),
    "meeting": (NixlWire, "meet"),
    "grant": (DecodeEnd, "grant"),
    "notification": (NixlWire, "notes"),
    "landing": (DecodeEnd, "landed"),
    "close": (Channel, "hang_up"),
}


def run(role: str, step: str, late: bool, port: int) -> None:
    """Play one end over one request; die before ``step``, or behind it if ``late``."""
    _die_at((PREFILL_STEPS if role == "prefill" else DECODE_STEPS)[step], late=late)
    with Client(("127.0.0.1", port)) as connection:
        group, pages = group_of(16), np.array([3, 5])
        link = Link(role, group, connection)
        link.agree()
        if role == "prefill":
            compute(group, tokens_of(1, 2), pages)
            with PrefillEnd(link) as end:
                end.wait(end.send("r", pages, 2 * P), 60.0)
        else:
            with DecodeEnd(link, lambda _pages: None) as end:
                end.wait(end.expect("r", pages, 2 * P), 60.0)


def _die_at(place: Step, *, late: bool) -> None:
    owner, name = place
    original = getattr(owner, name)

    def dies(*arguments: Any, **named: Any) -> None:
        if late:
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dies)
