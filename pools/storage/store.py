"""What a store is: batches of pages put, got and asked for by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_dbg.pools.storage.results import PageResult

__all__ = ["PageStore", "Record"]


@dataclass(slots=True, eq=False)
class Record:
    """One page on its way: a header's room, and the pieces of host memory that hold the payload.

    ``addresses`` and ``sizes`` name the same pieces, for transports that go by address. What is put
    has no header before ``seal`` was called; the later, the more of its digest is taken beside. Of what
    is got ``digest`` is the payload's, where a store took it as the bytes came; ``digests`` says that
    one is wanted.
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
        """Header and payload together, in bytes."""
        return len(self.header) + sum(self.sizes)


class PageStore(Protocol):
    """Pages by name. Methods report a page's end in its result and raise nothing of their own.

    Results come in the order of the records and as they are known, and records to be put are asked
    for one by one, so that whoever digests can work on one page while another is moved.
    """

    #: ``file``, ``mooncake``: what the events call it.
    name: str
    #: Why bytes take a slower way than they could, e.g. through a copy; empty where they do not.
    fallback: str

    @property
    def evicted(self) -> int | None:
        """Pages the store itself has let go of to make room; None where it does not say."""
        ...

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Keep each record; one that is there already may be left as it is."""
        ...

    def get(self, records: Sequence[Record]) -> Iterator[PageResult]:
        """Read each record into its header and pieces.

        ``ok`` says that the store did its part: the caller judges header, length (``nbytes``) and
        bytes. Where it is not ``ok`` the pieces may hold anything.
        """
        ...

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Which names the store believes it has.

        Raises:
            OSError: the store does not answer.
        """
        ...

    def discard(self, name: str) -> None:
        """Forget a record that turned out to be no good."""
        ...

    def register(self, regions: Iterable[tuple[int, int]]) -> None:
        """Take note of memory (address, length) that records will come from and go to."""
        ...

    def close(self) -> None:
        """Let everything go; records stay where they are."""
        ...
