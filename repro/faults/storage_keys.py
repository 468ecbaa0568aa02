"""Names of stored pages that do not say everything, and an index that says too much."""

from collections.abc import Iterator, Sequence

import msgspec

from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.header import Header
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import put
from hicache_dbg.repro.faults.storage_places import after_get, engine_of
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

NAMES = 3
"""How many names are left when they are cut."""


def _cut_short(target: Target) -> None:
    """So few bits of the hash are used that different prefixes share a name."""
    engine = engine_of(target)

    def keys(tokens: bytes) -> list[PageKey]:
        whole = StorageEngine.keys(engine, tokens)
        return [PageKey(f"{int(key.name, 16) % NAMES:032x}", key.tokens) for key in whole]

    put(engine, "keys", keys)


def _cut_short_and_not_checked(target: Target) -> None:
    """As above, and the name is all that is looked at."""
    _cut_short(target)
    put(engine_of(target), "arrived", lambda _key, _record, got: got)


def _another_dtypes(target: Target) -> None:
    """An earlier run kept index-K in another dtype, and the key does not say in which."""

    def change(record: Record, result: PageResult) -> PageResult:
        header = Header.decode(record.header)
        components = tuple(
            msgspec.structs.replace(item, dtype="float8_e4m3fn", row_bytes=item.row_bytes // 2)
            for item in header.components
        )
        record.header[:] = msgspec.structs.replace(header, components=components).encode()
        return result

    after_get(target, change)


def _never_forgets(target: Target) -> None:
    """The index says yes to what the store has let go of long ago."""
    backend = engine_of(target).backend
    put(backend, "exists", lambda names: [True] * len(names))

    def get(records: Sequence[Record]) -> Iterator[PageResult]:
        for _ in records:
            yield PageResult(PageState.MISSING, "no such object")

    put(backend, "get", get)
    put(backend, "put", lambda records: (PageResult(nbytes=record.nbytes) for record in records))


FAULTS = (
    Fault(
        name="storage_names_cut_short",
        cls=FaultClass.KEY_IDENTITY,
        summary="names of stored pages are cut so short that different prefixes share one",
        install=_cut_short,
        stage="storage",
    ),
    Fault(
        name="storage_names_cut_short_unseen",
        cls=FaultClass.KEY_IDENTITY,
        summary="different prefixes share a name in the store, and nobody reads the header",
        install=_cut_short_and_not_checked,
        stage="storage",
    ),
    Fault(
        name="another_dtypes_page",
        cls=FaultClass.KEY_IDENTITY,
        summary="a stored page is of a run with another dtype, which the key leaves out",
        install=_another_dtypes,
        stage="storage",
    ),
    Fault(
        name="store_index_never_forgets",
        cls=FaultClass.STALE_INDEX,
        summary="the store's index goes on offering pages whose bytes are gone",
        install=_never_forgets,
        stage="storage",
    ),
)
