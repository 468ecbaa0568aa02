# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Trees in which requests look their prefixes up, over SGLang's own controller."""

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
    """Return a stub with what trees read off a request."""
    return SimpleNamespace(rid=name, session=None, **given)


def lookup(name: str, tokens: int) -> Any:
    """Return the lookup of so many tokens."""
    return MatchPrefixParams(key=list(range(tokens)), req=request(name))


def batch(*names: str) -> Any:
    """Return a stub with what taking requests into a batch reads."""
    return SimpleNamespace(reqs=[request(name) for name in names])


class SmallTree(BasePrefixCache):  # type: ignore[misc]
    """A tree that queues what its methods are called for, as SGLang's do, with preset lookups."""

    def __init__(self, controller: Any, page: int) -> None:
        self.controller = controller
        self.page_size = page
        self.found: tuple[int, int] = (0, 0)
        self.room = True

    def match_prefix(self, params: Any) -> Any:  # noqa: ARG002
        """Return ``found`` tokens on the device and on the host."""
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
        """Back up the node's pages."""
        host: torch.Tensor = self.controller.write(device, node_id=node)
        return host

    def init_load_back(self, params: Any, host: Any = None, node: int = 0) -> Any:
        """Queue a load of the node's pages."""
        if not self.room:
            return 0, None
        loaded = params.host_hit_length
        if host is not None:
            loaded = self.controller.load(host, node_id=node)
        return loaded, None

    def write_backup_storage(self, node: int, host: Any, tokens: Any, keys: Any) -> None:  # noqa: ARG002
        """Send the node's pages on to storage."""
        self.controller.write_storage(host, tokens, keys)

    def load_back_of(self, name: str, tokens: int) -> Any:
        """Return the arguments with which a scheduler calls :meth:`init_load_back`."""
        return InitLoadBackParams(None, tokens, req=request(name))


SmallTree.__abstractmethods__ = frozenset()  # what else a tree has, by version
