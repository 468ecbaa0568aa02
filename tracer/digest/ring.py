"""Where compare launches put the tiles that differ: a bounded ring in device memory.

Layout, int64 [capacity + 2, 4]: row 0 holds the count of violations since the ring was made, rows
1..capacity the records (tag, layer index, page index, digest got), and the last row takes what the
torch fallback must write somewhere. Violation ``n`` lies in row ``1 + n % capacity``: the newest
stay, and the count goes on past the capacity.
"""

from dataclasses import dataclass

import torch

__all__ = ["Taken", "Violation", "ViolationRing"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One tile whose digest was not the one expected."""

    tag: int
    """What the caller named the compare launch: an operation's number."""
    layer: int
    """Which of the launch's layers."""
    page: int
    """Which of the launch's pages: an index into its page ids."""
    got: int
    """The digest of the bytes that are there, unsigned; 0 if the page lies outside the view."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came in since the ring was last read."""

    violations: tuple[Violation, ...]
    lost: int
    """Violations that were counted, but overwritten before they were read."""


class ViolationRing:
    """Bounded room for violations on one device, and its image in host memory."""

    def __init__(self, device: torch.device | str, capacity: int = 1024) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} records: expected room for at least 1")
        self.capacity = capacity
        self.rows = torch.zeros(capacity + 2, 4, dtype=torch.int64, device=device)
        self._host = torch.zeros_like(self.rows, device="cpu")
        if self.rows.is_cuda:
            self._host = self._host.pin_memory()
        self._seen = 0
        self.counter = self.rows.data_ptr()
        self.records = self.rows[1].data_ptr()

    def fetch(self) -> None:
        """Enqueue the copy to the host on the current stream, after the compares it is to show.

        It must be the stream on which those compares run, or one that waits for it: a record is
        written after it is counted.
        """
        self._host.copy_(self.rows, non_blocking=True)

    def take(self) -> Taken:
        """What the last :meth:`fetch` brought and no earlier call returned; it must be complete."""
        rows = self._host.numpy()
        count = int(rows[0, 0])
        start = max(self._seen, count - self.capacity)
        lost = start - self._seen
        self._seen = count
        found = (rows[1 + number % self.capacity].tolist() for number in range(start, count))
        return Taken(
            tuple(Violation(tag, layer, page, got % (1 << 64)) for tag, layer, page, got in found),
            lost,
        )
