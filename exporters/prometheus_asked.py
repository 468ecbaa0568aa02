"""State that is read at scrape time: one reader per rank, and no reader can break the scrape."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from prometheus_client import Counter

__all__ = ["Asked"]

T = TypeVar("T")


class Asked(Generic[T]):
    """Holds readers by rank.

    Args:
        failures: counts readers that raise, by place and rank.
        place: what the readers read, for that count.
    """

    def __init__(self, failures: Counter, place: str) -> None:
        self._failures = failures
        self._place = place
        self._readers: dict[int, Callable[[], T]] = {}

    def read(self, rank: int, reader: Callable[[], T] | None) -> None:
        """Set the reader of ``rank``; None removes it."""
        if reader is None:
            self._readers.pop(rank, None)
        else:
            self._readers[rank] = reader

    def answers(self) -> Iterator[tuple[str, T]]:
        """Yield the rank and the answer of each reader that does not fail."""
        for rank, reader in list(self._readers.items()):
            try:
                answer = reader()
            except Exception:  # noqa: BLE001 - foreign code: count it and read the others
                self._failures.labels(self._place, str(rank)).inc()
                continue
            yield str(rank), answer
