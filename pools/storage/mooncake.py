"""Mooncake Store as a backend: pages in the memory of other processes and machines.

Batches are transferred straight from and into the host pools, whose memory is registered with the
transfer engine. Requires the package ``mooncake-transfer-engine`` or its ``-non-cuda`` variant, and
a running master.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain, islice, repeat
from threading import Lock, Thread
from typing import Any

import numpy as np

from hicache_dbg.pools.forks import FORKED, leak, left_to_parent
from hicache_dbg.pools.storage.header import HEADER_BYTES
from hicache_dbg.pools.storage.results import PageResult, PageState
from hicache_dbg.pools.storage.store import Record

__all__ = ["MooncakeMissing", "MooncakeStore"]

#: Most pages and bytes per call: enough to amortize the third of a millisecond that a call costs.
BATCH, BATCH_BYTES = 16, 80 << 20
#: The bytes of the first calls of a put: nothing is transferred while the first batch is hashed.
FIRST_BYTES = 8 << 20, 32 << 20
CLOSE_TIMEOUT_S = 2.0
#: Error codes of the client: the object does not exist; the object has another size.
NO_OBJECT = -704
OTHER_SIZE = frozenset({-600, -800})
#: Environment variables of the client, unless they are set. By default it waits 30 s for a master that
#: does not answer, and twenty times so during setup, where it also keeps the interpreter lock.
PATIENCE = {"MC_RPC_TIMEOUT_MS": "4000", "MC_STORE_CLIENT_SETUP_RETRIES": "3"}
SEGMENT_BYTES = 1 << 30
BUFFER_BYTES = 64 << 20


class MooncakeMissing(RuntimeError):  # noqa: N818 (a state of the machine, not of the program)
    """The package is not installed, or a system library that it needs is missing."""


class MooncakeStore:
    """Pages as objects of a Mooncake Store, through a client in this process.

    In a forked child the client is still the parent's: every page fails, and closing does nothing.

    Args:
        master: ``host:port`` of the master.
        metadata: URL of the metadata service, ``http://host:port/metadata``.
        host: the name under which other processes reach this one.
        segment_bytes: memory that this process contributes to the store; 0 contributes none.
        buffer_bytes: size of the client's own buffer, for transfers that are staged.
        protocol: ``tcp`` or ``rdma``.

    Raises:
        MooncakeMissing: the package cannot be imported.
        OSError: the master does not answer.
    """

    name = "mooncake"
    evicted: int | None = None  # the master evicts without telling its clients

    def __init__(
        self,
        master: str,
        metadata: str,
        *,
        host: str = "127.0.0.1",
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        protocol: str = "tcp",
    ) -> None:
        self.fallback = ""
        self._client = _client()
        # One per direction: a call that hangs must not block the other direction.
        self._out, self._in = (np.zeros((BATCH, HEADER_BYTES), np.uint8) for _ in range(2))
        self._out_lock, self._in_lock = Lock(), Lock()
        self._regions: list[int] = []
        self._refusal = ""
        code = self._client.setup(host, metadata, segment_bytes, buffer_bytes, protocol, "", master)
        if code:
            raise OSError(
                errno.ECONNREFUSED,
                f"Mooncake Store: no client for master {master} and metadata {metadata} (error {code}); "
                "start mooncake_master, and check both addresses",
            )
        for headers in (self._out, self._in):
            self._register(headers.ctypes.data, headers.nbytes)
        left_to_parent(self)

    def leave_to_parent(self) -> None:
        """Refuse everything in a forked child: the client's threads are not here."""
        leak(self._client)
        self._refusal = f"the client {FORKED}; open a store here"
        self._out_lock, self._in_lock = Lock(), Lock()
        self._regions.clear()

    def register(self, regions: Iterable[tuple[int, int]]) -> None:
        """Register host memory; if that is refused, pages are staged in the client's buffer."""
        for address, nbytes in regions:
            if address not in self._regions:
                self._register(address, nbytes)

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Put the records in batches; an existing object stays as it is."""
        if self._refusal:
            yield from (PageResult(PageState.FAILED, self._refusal) for _ in records)
            return
        source, limits = iter(records), chain(FIRST_BYTES, repeat(BATCH_BYTES))
        batch = _batch(source, next(limits))
        while batch:
            following = _batch(source, next(limits))  # hashed while this batch is transferred
            for record in reversed(batch):
                record.seal()
            yield from self._put_staged(batch) if self.fallback else self._put(batch)
            batch = following

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Get the records in batches."""
        if self._refusal:
            yield from (PageResult(PageState.FAILED, self._refusal) for _ in records)
            return
        source = iter(records)
        while batch := _batch(source):
            yield from map(self._get_staged, batch) if self.fallback else self._get(batch)

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Return which objects the master knows.

        Raises:
            OSError: the master does not answer.
        """
        if self._refusal:
            raise OSError(errno.ENOTCONN, f"Mooncake Store: {self._refusal}")
        codes = self._client.batch_is_exist(list(names))
        bad = next((code for code in codes if code < 0), 0)
        if bad:
            raise OSError(errno.EHOSTUNREACH, f"Mooncake Store: exists: error {bad}")
        return [code == 1 for code in codes]

    def discard(self, name: str) -> None:
        """Remove an object, even if somebody holds a lease on it."""
        if not self._refusal:
            self._client.remove(name, force=True)

    def close(self) -> None:
        """Leave the store in bounded time; a client whose master is gone would wait for it."""
        if self._refusal:
            return
        for address in self._regions:
            self._client.unregister_buffer(address)
        self._regions.clear()
        leaving = Thread(target=self._client.close, name="hicache-mooncake-close", daemon=True)
        leaving.start()
        leaving.join(CLOSE_TIMEOUT_S)

    # -- zero copy ----------------------------------------------------------------------------

    def _put(self, batch: Sequence[Record]) -> list[PageResult]:
        with self._out_lock:
            for room, record in zip(self._out, batch, strict=False):
                room[:] = np.frombuffer(record.header, np.uint8)
            addresses, sizes = _parts(batch, self._out)
            names = [record.name for record in batch]
            codes = self._client.batch_put_from_multi_buffers(names, addresses, sizes)
        return [_put_end(record, code) for record, code in zip(batch, codes, strict=True)]

    def _get(self, batch: Sequence[Record]) -> list[PageResult]:
        with self._in_lock:
            addresses, sizes = _parts(batch, self._in)
            names = [record.name for record in batch]
            codes = self._client.batch_get_into_multi_buffers(names, addresses, sizes)
            for room, record in zip(self._in, batch, strict=False):
                record.header[:] = room.data
        return [self._got(record, code) for record, code in zip(batch, codes, strict=True)]

    def _got(self, record: Record, code: int) -> PageResult:
        if code >= 0:
            return PageResult(nbytes=code)
        if code == NO_OBJECT:
            return PageResult(PageState.MISSING, "no such object")
        if code in OTHER_SIZE:  # read it anyway: its header says what it is
            return self._get_staged(record)
        return PageResult(PageState.FAILED, f"get: error {code}", errno=errno.EIO)

    # -- staged in the client's buffer --------------------------------------------------------

    def _put_staged(self, batch: Sequence[Record]) -> Iterator[PageResult]:
        for record in batch:
            code = self._client.put_parts(record.name, bytes(record.header), *record.pieces)
            yield _put_end(record, code)

    def _get_staged(self, record: Record) -> PageResult:
        raw = self._client.get(record.name)
        if not raw:
            return PageResult(PageState.MISSING, "no such object")
        at = min(len(raw), HEADER_BYTES)
        record.header[:at] = raw[:at]
        if len(raw) == record.nbytes:
            for piece in record.pieces:
                piece[:] = raw[at : at + len(piece)]
                at += len(piece)
        return PageResult(nbytes=len(raw))

    def _register(self, address: int, nbytes: int) -> None:
        code = self._client.register_buffer(address, nbytes)
        if code:
            self.fallback = (
                f"{nbytes} B of host memory could not be registered with Mooncake Store (error {code}), "
                "so pages are copied through the client's buffer"
            )
        else:
            self._regions.append(address)


def _batch(source: Iterator[Record], nbytes: int = BATCH_BYTES) -> list[Record]:
    """Take the records of the next call from ``source``, about ``nbytes``; empty at the end."""
    first = next(source, None)
    if first is None:
        return []
    return [first, *islice(source, min(BATCH, nbytes // first.nbytes + 1) - 1)]


def _parts(batch: Sequence[Record], headers: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
    """Return the addresses and sizes of each record's header and pieces."""
    rooms = (headers.ctypes.data + HEADER_BYTES * at for at in range(len(batch)))
    addresses = [[room, *record.addresses] for room, record in zip(rooms, batch, strict=True)]
    return addresses, [[HEADER_BYTES, *record.sizes] for record in batch]


def _put_end(record: Record, code: int) -> PageResult:
    if code == 0:
        return PageResult(nbytes=record.nbytes)
    return PageResult(PageState.FAILED, f"put: error {code}", errno=errno.EIO)


def _client() -> Any:
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("mooncake.store").MooncakeDistributedStore()
    except ImportError as error:
        raise MooncakeMissing(
            f"Mooncake Store cannot be used: {error}; install hicache-dbg[mooncake], and Debian's "
            "libibverbs1, librdmacm1, libnuma1 and liburing2"
        ) from error
