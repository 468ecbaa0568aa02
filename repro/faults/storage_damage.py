"""Bytes that are not those that were stored, and fetches that bring none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hicache_dbg.pools.storage.header import HEADER_BYTES, check
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record
from hicache_dbg.repro.faults.base import Fault, Target
from hicache_dbg.repro.faults.places import put
from hicache_dbg.repro.faults.storage_places import after_get, engine_of
from hicache_dbg.tracer.events import FaultClass

__all__ = ["FAULTS"]

#: In the last byte of a float: its exponent's first bit, so that the number is another by far.
EXPONENT = 0x40


def _flipped(target: Target) -> None:
    """The medium gives back one bit of each page otherwise."""

    def change(record: Record, result: PageResult) -> PageResult:
        piece = record.pieces[-1]
        piece[len(piece) // 2 - 1] ^= EXPONENT
        return result

    after_get(target, change)


def _digest_not_compared(target: Target) -> None:
    """Header and length are looked at, the bytes are not."""
    engine = engine_of(target)

    def arrived(key: PageKey, record: Record, got: PageResult) -> PageResult:
        return check(record.header, engine.header(key), got.nbytes) if got.good else got

    put(engine, "arrived", arrived)


def _flipped_and_not_compared(target: Target) -> None:
    _flipped(target)
    _digest_not_compared(target)


def _truncated(target: Target) -> None:
    """A writer was killed, or the disk was full: half of each page is there."""

    def change(record: Record, result: PageResult) -> PageResult:
        half = HEADER_BYTES + sum(record.sizes) // 2
        record.pieces[-1][:] = bytes(len(record.pieces[-1]))
        return replace(result, nbytes=half)

    after_get(target, change)


def _another_writers(target: Target) -> None:
    """Names collide between writers: the first page read comes back for every other."""
    first: list[bytes] = []

    def change(record: Record, result: PageResult) -> PageResult:
        if not first:
            first.append(bytes(record.header))
        record.header[:] = first[0]
        return result

    after_get(target, change)


def _not_delivered(target: Target) -> None:
    """A batch's status is taken for each page's: headers come, and the bytes never do."""
    backend = engine_of(target).backend
    own = backend.get

    def get(records: Sequence[Record]) -> Iterator[PageResult]:
        left = [[bytes(piece) for piece in record.pieces] for record in records]
        for record, pieces, result in zip(records, left, own(records), strict=True):
            for piece, before in zip(record.pieces, pieces, strict=True):
                piece[:] = before
            yield result

    put(backend, "get", get)
    _digest_not_compared(target)


FAULTS = (
    Fault(
        name="stored_bit_flips",
        cls=FaultClass.STORAGE_DAMAGE,
        summary="one bit of each stored page changes at rest",
        install=_flipped,
        stage="storage",
    ),
    Fault(
        name="stored_bit_flips_unseen",
        cls=FaultClass.STORAGE_DAMAGE,
        summary="one bit of each stored page changes at rest, and the store compares no digest",
        install=_flipped_and_not_compared,
        stage="storage",
    ),
    Fault(
        name="stored_page_truncated",
        cls=FaultClass.STORAGE_DAMAGE,
        summary="half of each stored page is there when it is read",
        install=_truncated,
        stage="storage",
    ),
    Fault(
        name="another_writers_page",
        cls=FaultClass.STORAGE_DAMAGE,
        summary="two writers use one name, and a page of the other is read",
        install=_another_writers,
        stage="storage",
    ),
    Fault(
        name="fetch_reported_without_its_bytes",
        cls=FaultClass.FAILED_LOAD,
        summary="a fetch that brought nothing is reported as done",
        install=_not_delivered,
        stage="storage",
    ),
)
