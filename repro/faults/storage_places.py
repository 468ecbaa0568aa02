"""The places in a storage tier where faults are injected."""

from collections.abc import Callable, Iterator, Sequence

from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.pools.storage.tier import OpenTier
from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.faults.base import Target
from hicache_dbg.repro.faults.places import put

__all__ = ["after_get", "engine_of", "storage_of"]

AfterGet = Callable[[Record, PageResult], PageResult]


def storage_of(target: Target) -> OpenTier:
    """Return the target's storage tier.

    Raises:
        ConfigError: it has none, so that the fault would change nothing.
    """
    storage = target.controller.storage
    if storage is None:
        raise ConfigError(
            "this fault is in a storage tier, and the run has none; add --storage file"
        )
    return storage


def engine_of(target: Target) -> StorageEngine:
    """Return the engine that moves pages to the target's store and back."""
    return storage_of(target).engine


def after_get(target: Target, change: AfterGet) -> None:
    """Pass each good record the store reads through ``change``, which returns the result."""
    backend = engine_of(target).backend
    own = backend.get

    def get(records: Sequence[Record]) -> Iterator[PageResult]:
        for record, result in zip(records, own(records), strict=True):
            yield change(record, result) if result.good else result

    put(backend, "get", get)
