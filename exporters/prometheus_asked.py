"""What is asked when a scrape comes: one reader a rank, none of which can spoil the scrape."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from prometheus_client import Counter

__all__ = ["Asked"]

T = TypeVar("T")


class Asked(Generic[T]):
    """Has readers by rank.

    Args:
        failures: counts those that raise, by place and rank.
        place: what the readers are asked for.
    """

    def __init__(self, failures: Counter, place: str) -> None:
        self._failures = failures
        self._place = place
        self._readers: dict[int, Callable[[], T]] = {}

    def read(self, rank: int, reader: Callable[[], T] | None) -> None:
        """Ask ``reader`` on behalf of ``rank`` from now on; None: nobody."""
        if reader is None:
            self._readers.pop(rank, None)
        else:
            self._readers[rank] = reader

    def answers(self) -> Iterator[tuple[str, T]]:
        """The rank and the answer of each reader that has one."""
        for rank, reader in list(self._readers.items()):
            try:
                answer = reader()
            except Exception:  # noqa: BLE001 - another's code; counted, and the others are asked
                self._failures.labels(self._place, str(rank)).inc()
                continue
            yield str(rank), answer
