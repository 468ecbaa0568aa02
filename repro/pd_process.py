"""Decode's handle on the process that computes prompts: started, asked, ended."""

import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.channel import SILENCE_S
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.repro.children import uninterrupted
from hicache_dbg.repro.result import EngineStats

__all__ = ["Jobs", "PrefillProcess", "Serve"]

Serve = Callable[..., None]
"""What the process runs: given its job pipe, the handover's channel, and what it was started with."""

#: How long a process may take to start, and to end, in seconds.
START_S, END_S = 120.0, 10.0


class Jobs:
    """Decode's end of the pipe on which prompts go to the process, and first tokens come back."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, request: str, tokens: np.ndarray, timeout: float) -> int | str | None:
        """Have a prompt computed and handed over.

        Returns:
            The first token of the reply once prefill is done; a text if it failed; None if no
                answer came, for which the end of the handover has the reason.
        """
        until = time.monotonic() + timeout
        try:
            self._pipe.send((request, tokens))
            while self._pipe.poll(max(0.0, until - time.monotonic())):
                answered, answer = self._pipe.recv()
                if answered == request:  # another one was given up before its answer came
                    return answer  # type: ignore[no-any-return]
        except (EOFError, OSError):
            pass
        return None

    def end(self, timeout: float) -> EngineStats:
        """End the process and return its engine's stats; empty ones if it does not report them."""
        until = time.monotonic() + timeout
        try:
            self._pipe.send(None)
            while self._pipe.poll(max(0.0, until - time.monotonic())):
                said = self._pipe.recv()
                if isinstance(said, EngineStats):
                    return said
        except (EOFError, OSError):
            pass  # the process is already gone
        return EngineStats()

    def close(self) -> None:
        """Close this end, which the process notices."""
        self._pipe.close()


class PrefillProcess:
    """Another process over another set of pools, and this end of the handover from it.

    Args:
        serve: the function it runs, importable by name.
        arguments: for ``serve``, after the two connections.
        group: this end's pools.
        controller: takes back pages that a failed handover kept.
        model: a fingerprint of weights and settings, which both ends must share.

    Raises:
        HandoverError: it did not start, or its format differs.
    """

    def __init__(
        self,
        serve: Serve,
        arguments: tuple[Any, ...],
        group: PoolGroup,
        controller: HiCacheController,
        model: str,
    ) -> None:
        context = get_context("spawn")
        pipe, jobs = context.Pipe()
        self._jobs = Jobs(pipe)
        ours, channel = context.Pipe()
        self._process = context.Process(target=serve, args=(jobs, channel, *arguments), daemon=True)
        with uninterrupted():
            self._process.start()
        jobs.close()
        channel.close()
        try:
            link = Link("decode", group, ours, model=model, silence_s=START_S)
            link.agree()
            link.channel.silence_s = SILENCE_S
            generation = controller.allocators["device"].generation
            self.end = DecodeEnd(link, controller.free_device, generation=generation)
        except BaseException:
            ours.close()  # the process may wait at the other end
            self._stop()
            raise

    def ask(self, request: str, tokens: np.ndarray, timeout: float) -> int | str | None:
        """Have a prompt computed and handed over; see :meth:`Jobs.ask`."""
        return self._jobs.ask(request, tokens, timeout)

    def close(self) -> EngineStats:
        """End the process, in bounded time; return its engine's stats if it still reports them."""
        stats = self._jobs.end(END_S)
        self._stop()
        self.end.close()  # behind the process's end: nothing writes its pages any more
        return stats

    def _stop(self) -> None:
        self._jobs.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
