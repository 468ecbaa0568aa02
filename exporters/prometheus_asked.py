"""State that is read at scrape time: a reader per sink, and no reader can break the scrape."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from prometheus_client import Counter

__all__ = ["Asked"]

T = TypeVar("T")


class Asked(Generic[T]):
    """Holds the readers of all sinks: two sessions in one process have one each.

    Args:
        failures: counts readers that raise, by place and rank.
        place: what the readers read, for that count.
    """

    def __init__(self, failures: Counter, place: str) -> None:
        self._failures = failures
        self._place = place
        self._readers: dict[object, tuple[int, Callable[[], T]]] = {}

    def read(self, owner: object, rank: int, reader: Callable[[], T] | None) -> None:
        """Set the reader of ``owner``; None removes it."""
        if reader is None:
            self._readers.pop(owner, None)
        else:
            self._readers[owner] = rank, reader

    def answers(self) -> Iterator[tuple[str, T]]:
        """Yield the rank and the answer of each reader that does not fail, oldest reader first."""
        for rank, reader in list(self._readers.values()):
            try:
                answer = reader()
            except Exception:  # noqa: BLE001 - foreign code: count it and read the others
                self._failures.labels(self._place, str(rank)).inc()
                continue
            yield str(rank), answer
