"""A page table in host memory that is copied to the device for each turn, as servers do."""

import torch

from hicache_dbg.pools.streams import Event, Stream
from hicache_dbg.tracer.attach.hicache_streams import Kernel, TableTouch

__all__ = ["PageTable"]

NAME = "page_table"


class PageTable:
    """One host buffer, written for each turn and copied by a stream to its place on the device.

    ``behind`` says how many copies back the one is that is waited for before the buffer is
    written: 0 is the last one, which is right; None waits for none.
    """

    def __init__(self, rows: int) -> None:
        self.behind: int | None = 0
        self.wrong: list[int] = []
        self._host = torch.zeros(rows, dtype=torch.int64)
        self._copied: list[Event] = []

    def ready(self) -> None:
        """Before the host writes."""
        if self.behind is not None and len(self._copied) > self.behind:
            self._copied[-1 - self.behind].synchronize()

    def write(self, rows: torch.Tensor) -> TableTouch:
        """Write a turn's rows; what was touched."""
        self._host[: rows.numel()] = rows
        return TableTouch(NAME, range(rows.numel()), self._host.numel(), writes=True)

    def upload(self, stream: Stream, rows: torch.Tensor) -> None:
        """Queue the copy of ``rows`` rows; the device notes which of them it did not get."""
        count, meant = rows.numel(), rows.clone()

        def copy() -> None:
            differ = self._host[:count] != meant
            self.wrong.extend(torch.nonzero(differ).flatten().tolist())

        touch = TableTouch(NAME, range(count), self._host.numel(), writes=False)
        stream.submit(Kernel("upload_page_table", copy, (touch,)))
        self._copied.append(stream.record())
