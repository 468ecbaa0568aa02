"""A page table in host memory that is copied to the device for each turn, as servers do."""

from collections.abc import Callable, Sequence

import torch

from hicache_dbg.pools.streams import Event, SimulatedStreams, Stream
from hicache_dbg.tracer.attach.hicache_streams import Kernel, TableTouch, Touch

__all__ = ["HostAccess", "PageTable", "Uploads", "untold"]

HostAccess = Callable[[str, Sequence[Touch | TableTouch]], None]
"""Tells the tracer of an access by the calling thread itself."""

NAME = "page_table"


class PageTable:
    """One host buffer, written for each turn and copied by a stream to its place on the device.

    ``behind`` says which earlier copy is waited for before the buffer is written: 0 is the last
    one, which is correct; None waits for none.
    """

    def __init__(self, rows: int) -> None:
        self.behind: int | None = 0
        self.wrong: list[int] = []
        self._host = torch.zeros(rows, dtype=torch.int64)
        self._copied: list[Event] = []

    def ready(self) -> None:
        """Wait before the host writes."""
        if self.behind is not None and len(self._copied) > self.behind:
            self._copied[-1 - self.behind].synchronize()

    def write(self, rows: torch.Tensor) -> TableTouch:
        """Write a turn's rows and return what was touched."""
        self._host[: rows.numel()] = rows
        return TableTouch(NAME, self, range(rows.numel()), self._host.numel(), writes=True)

    def upload(self, stream: Stream, rows: torch.Tensor) -> torch.Tensor:
        """Queue the copy of ``rows`` rows and record which of them do not arrive.

        Returns:
            The device's table, which is filled when the copy runs.
        """
        count, meant, arrived = rows.numel(), rows.clone(), torch.empty_like(rows)

        def copy() -> None:
            arrived.copy_(self._host[:count])
            differ = arrived != meant
            self.wrong.extend(torch.nonzero(differ).flatten().tolist())

        touch = TableTouch(NAME, self, range(count), self._host.numel(), writes=False)
        stream.submit(Kernel("upload_page_table", copy, (touch,)))
        self._copied.append(stream.record())
        return arrived


class Uploads:
    """Uploads each turn's page table, then writes the next step's into the same buffer.

    Args:
        table: the buffer.
        host_access: see :data:`HostAccess`.
        rest: called first to wait for copies in flight, so that damage from a wrong table is not
            attributed to a copy.
    """

    def __init__(
        self, table: PageTable, host_access: HostAccess, rest: Callable[[], object]
    ) -> None:
        self._table = table
        self._rest = rest
        self._host_access = host_access
        self._streams = SimulatedStreams()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the device has of ``rows`` when its kernels read them."""
        self._rest()
        stream = self._streams.stream("forward")
        seen = [self._step(stream, step) for step in (rows, rows.flip(0))]
        self._streams.synchronize()
        return seen[0]

    def _step(self, stream: Stream, rows: torch.Tensor) -> torch.Tensor:
        self._table.ready()
        self._host_access("write page table", (self._table.write(rows),))
        return self._table.upload(stream, rows)


def untold(_name: str, _touches: Sequence[Touch | TableTouch]) -> None:
    """Ignore an access."""
