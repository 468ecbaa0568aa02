# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Trees that requests look their prefixes up in, over SGLang's own controller."""

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)

__all__ = ["SmallTree", "batch", "lookup", "request"]


def request(name: str, **given: Any) -> Any:
    """What trees ask a request for."""
    return SimpleNamespace(rid=name, session=None, **given)


def lookup(name: str, tokens: int) -> Any:
    """A look-up of so many tokens."""
    return MatchPrefixParams(key=list(range(tokens)), req=request(name))


def batch(*names: str) -> Any:
    """What takes requests into a batch reads of it, and no more."""
    return SimpleNamespace(reqs=[request(name) for name in names])


class SmallTree(BasePrefixCache):  # type: ignore[misc]
    """Queues what its methods are called for, as SGLang's trees do, and finds what it is told to."""

    def __init__(self, controller: Any, page: int) -> None:
        self.controller = controller
        self.page_size = page
        self.found: tuple[int, int] = (0, 0)
        self.room = True

    def match_prefix(self, params: Any) -> Any:  # noqa: ARG002
        """``found`` tokens on the device and on the host."""
        device, host = self.found
        fields = dict.fromkeys(MatchResult._fields[:4])
        first = MatchResult._fields[0]
        fields[first] = device if first == "device_prefix_len" else torch.arange(device)
        return MatchResult(**fields, host_hit_length=host)

    def cache_unfinished_req(
        self,
        req: Any,  # noqa: ARG002
        device: torch.Tensor,
        node: int,
    ) -> torch.Tensor:
        """The node's pages are backed up."""
        host: torch.Tensor = self.controller.write(device, node_id=node)
        return host

    def init_load_back(self, params: Any, host: Any = None, node: int = 0) -> Any:
        """The node's pages are queued to be loaded."""
        if not self.room:
            return 0, None
        loaded = params.host_hit_length
        if host is not None:
            loaded = self.controller.load(host, node_id=node)
        return loaded, None

    def write_backup_storage(self, node: int, host: Any, tokens: Any, keys: Any) -> None:  # noqa: ARG002
        """The node's pages are sent on to storage."""
        self.controller.write_storage(host, tokens, keys)

    def load_back_of(self, name: str, tokens: int) -> Any:
        """What a scheduler calls :meth:`init_load_back` with."""
        return InitLoadBackParams(None, tokens, req=request(name))


SmallTree.__abstractmethods__ = frozenset()  # what else a tree has, by version
