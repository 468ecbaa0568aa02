"""Views of a handover's pools, and their device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hicache_dbg.pools.captures import guard_for
from hicache_dbg.pools.host import Mirror
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.mirror import MirrorViews

__all__ = ["KnownViews", "current"]


class KnownViews:
    """Views of mirrors, built once per mirror."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mirror, MirrorViews]] = {}

    def __call__(self, mirror: Mirror) -> MirrorViews:
        """Return the views of one mirror."""
        known = self._known.get(id(mirror))
        if known is None or known[0] is not mirror:
            known = self._known[id(mirror)] = mirror, mirror_views(mirror, None)
        return known[1]


@contextmanager
def current(device: str) -> Iterator[None]:
    """Make ``device`` the thread's current one, as a GPU must be, and leave graph captures alone.

    A digest waits for events and allocates pinned memory, either of which would invalidate a CUDA graph
    that the host captures on another thread.
    """
    if device == "cpu":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.set_device(device)  # enters its context, which a new thread has not yet
        with guard_for(torch.device(device))():
            yield
