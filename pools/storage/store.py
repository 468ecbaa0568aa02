"""The interface of a store: put, get and look up batches of pages by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_dbg.pools.storage.results import PageResult

__all__ = ["PageStore", "Record"]


@dataclass(slots=True, eq=False)
class Record:
    """One page in transfer: a buffer for the header, and the pieces of host memory for the payload.

    ``addresses`` and ``sizes`` describe the same pieces, for transports that work on addresses. The
    header of a record to be put is valid once ``seal`` was called; the later that is, the more time
    other threads have to hash the payload. ``digests`` says that a digest of the payload is wanted.
    A store that hashes the bytes as it reads them leaves it in ``digest``.
    """

    name: str
    header: bytearray
    pieces: list[memoryview]
    addresses: list[int]
    sizes: list[int]
    digests: bool = False
    digest: int | None = None
    seal: Callable[[], None] = lambda: None

    @property
    def nbytes(self) -> int:
        """Bytes of header and payload together."""
        return len(self.header) + sum(self.sizes)


class PageStore(Protocol):
    """A store of pages by name. Methods report failures in the results and do not raise.

    Results are yielded in the order of the records, as they become known. Records to be put are
    consumed one by one, so that one page can be hashed while another is transferred.
    """

    #: ``file`` or ``mooncake``: its name in events.
    name: str
    #: Why transfers take a slow path, such as a staging copy; empty if they do not.
    fallback: str

    @property
    def evicted(self) -> int | None:
        """Number of pages that the store evicted; None if it does not say."""
        ...

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Store each record; an existing one may be left as it is."""
        ...

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read each record into its header and pieces.

        ``ok`` means that the store did its part; the caller validates header, length (``nbytes``)
        and payload. Otherwise the pieces may hold anything.
        """
        ...

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Return which names the store claims to have.

        Raises:
            OSError: the store does not answer.
        """
        ...

    def discard(self, name: str) -> None:
        """Remove a record that turned out to be bad."""
        ...

    def register(self, regions: Iterable[tuple[int, int]]) -> None:
        """Register the memory (address, length) that records are read from and written to."""
        ...

    def close(self) -> None:
        """Release all resources; the records stay."""
        ...
