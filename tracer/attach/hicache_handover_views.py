"""Views of a handover's pools, and their device."""

from contextlib import AbstractContextManager, nullcontext

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


def current(device: str) -> AbstractContextManager[object]:
    """Return a context in which ``device`` is the thread's current one, as a GPU must be."""
    if device == "cpu":
        return nullcontext()
    import torch

    return torch.cuda.device(device)
