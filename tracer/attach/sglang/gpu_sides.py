"""Choosing a stream of ours to digest beside each of SGLang's.

While a kernel is waiting on one stream, every launch on some other streams takes up to 6 us longer,
although those wait for nothing. Which pairs are affected cannot be queried, but stays the same as long
as both streams live, so we measure it (docs/sglang_gpu.md).
"""

from collections.abc import Callable
from functools import cache

import torch

from hicache_dbg.tracer.digest.driver import driven, driver
from hicache_dbg.tracer.digest.own_stream import own_stream

__all__ = ["Sides"]

_CANDIDATES = 6
#: How many launches are timed, twice for each candidate, and the cycles for which they are held back.
_LAUNCHES, _CYCLES = 16, 600_000


class Sides(dict[int, int]):
    """Maps a stream of copies to the stream beside it, by their handles; to our first one until measured.

    Args:
        device: The streams' device.
        send: Enqueues a small kernel, given target, source, words and stream; without it nothing is
            measured.
    """

    def __init__(
        self, device: torch.device, send: Callable[[int, int, int, int], None] | None
    ) -> None:
        super().__init__()
        self._device, self._send = device, send
        self._candidates = _ours(device)
        self._word = torch.zeros(1, dtype=torch.int64, device=device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def __missing__(self, stream: int) -> int:
        return self._candidates[0]

    def settle(self, stream: int) -> None:
        """Choose the stream beside ``stream``, once, while that is idle; takes the bus's thread 5 ms."""
        if stream in self or self._send is None or not stream:
            return
        with torch.cuda.device(self._device):
            if driver().cuStreamQuery(stream) == 0:
                self[stream] = self._candidates[0]  # not tried again if this fails
                took = {
                    beside: min(self.launches_ms(stream, beside) for _ in range(2))
                    for beside in self._candidates
                }
                self[stream] = min(took, key=lambda beside: took[beside])

    def launches_ms(self, stream: int, beside: int) -> float:
        """Return the milliseconds that launches on ``stream`` take while a kernel on ``beside`` waits."""
        theirs = torch.cuda.ExternalStream(stream, self._device)
        with torch.cuda.stream(theirs):
            torch.cuda._sleep(_CYCLES)  # noqa: SLF001 - until everything is enqueued
        self._begin.record(theirs)
        for _ in range(_LAUNCHES):
            self._launch(stream)
        self._end.record(theirs)
        driven(driver().cuStreamWaitEvent, beside, self._end.cuda_event, 0)
        self._launch(beside)
        driven(driver().cuStreamSynchronize, beside)
        return float(self._begin.elapsed_time(self._end))

    def _launch(self, stream: int) -> None:
        assert self._send is not None  # noqa: S101 - asked before
        word = self._word.data_ptr()
        self._send(word, word, 1, stream)


@cache
def _ours(device: torch.device) -> tuple[int, ...]:
    return tuple(own_stream(device) for _ in range(_CANDIDATES))
