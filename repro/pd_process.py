"""Decode's handle on the process that computes prompts: started, asked, ended."""

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import numpy as np

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.channel import SILENCE_S
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link
from hicache_dbg.repro.result import EngineStats

__all__ = ["PrefillProcess", "Serve"]

Serve = Callable[..., None]
"""What the process runs: given its job pipe, the handover's channel, and what it was started with."""

#: How long a process may take to start, and to end, in seconds.
START_S, END_S = 120.0, 10.0


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
        self._jobs, jobs = context.Pipe()
        ours, channel = context.Pipe()
        self._process = context.Process(target=serve, args=(jobs, channel, *arguments), daemon=True)
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
            self._stop()
            raise

    def ask(self, request: str, tokens: np.ndarray, timeout: float) -> int | str | None:
        """Have a prompt computed and handed over.

        Returns:
            The first token of the reply once prefill is done; a text if it failed; None if no
                answer came, for which the end of the handover has the reason.
        """
        try:
            self._jobs.send((request, tokens))
            return self._jobs.recv() if self._jobs.poll(timeout) else None
        except (EOFError, OSError):
            return None

    def close(self) -> EngineStats:
        """End the process, in bounded time; return its engine's stats if it still reports them."""
        stats = EngineStats()
        try:
            self._jobs.send(None)
            if self._jobs.poll(END_S):
                stats = self._jobs.recv()
        except (EOFError, OSError):
            pass  # the process is already gone
        self.end.close()
        self._stop()
        return stats

    def _stop(self) -> None:
        self._jobs.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
