"""Wires that do harm: they corrupt tiles in transit, or die in the middle of a write."""

import os
import signal
from collections.abc import Callable

import numpy as np
import torch

from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.messages import Landed, decode
from hicache_dbg.pools.handover.planes import Descriptors, Starts, places_of, planes_of
from hicache_dbg.pools.handover.wire import Transfer, TransferState, Wire
from hicache_dbg.repro.faults.base import Parcel

__all__ = ["DyingWire", "FaultyWire", "scratch_for"]


def scratch_for(group: PoolGroup, pages: int) -> torch.Tensor:
    """Allocate room for every tile of a request of ``pages`` pages: uint8, on the pools' device."""
    size = pages * sum(plane.page_bytes for plane in planes_of(group))
    return torch.zeros(size, dtype=torch.uint8, device=group.mirrors[0].device.device)


class _Through:
    """A wire that forwards every call."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def agent(self) -> bytes:
        """The real wire's agent."""
        return self._wire.agent

    def meet(self, agent: bytes, starts: Starts) -> None:
        """Forward to the real wire."""
        self._wire.meet(agent, starts)

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """Forward to the real wire."""
        return self._wire.prepare(local, remote, note)

    def begin(self, transfer: Transfer) -> None:
        """Forward to the real wire."""
        self._wire.begin(transfer)

    def state(self, transfer: Transfer) -> TransferState:
        """Forward to the real wire."""
        return self._wire.state(transfer)

    def release(self, transfer: Transfer) -> None:
        """Forward to the real wire."""
        self._wire.release(transfer)

    def notes(self) -> list[bytes]:
        """Forward to the real wire."""
        return self._wire.notes()

    def close(self) -> None:
        """Forward to the real wire."""
        self._wire.close()


class FaultyWire(_Through):
    """Lets ``change`` drop, shorten or replace each tile's bytes.

    Args:
        wire: writes the result; ``scratch`` lies in its registered memory.
        group: owns the tiles.
        scratch: holds modified bytes; one request at a time.
        change: see :attr:`~hicache_dbg.repro.faults.base.Target.wire`.
    """

    def __init__(
        self,
        wire: Wire,
        group: PoolGroup,
        scratch: torch.Tensor,
        change: Callable[[Parcel], bytes | None],
    ) -> None:
        super().__init__(wire)
        self._planes = planes_of(group)
        self._memory = [
            tensor.view(torch.uint8).view(-1)
            for mirror in group.mirrors
            for buffer in mirror.device.buffers.values()
            for tensor in buffer.tensors
        ]
        self._scratch = scratch
        self._change = change

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """Prepare the tiles as the fault changes them."""
        told = decode(note)
        assert isinstance(told, Landed)  # noqa: S101 - the note of every request's write
        rows: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []
        used = 0
        places = places_of(self._planes, told.pages)
        for place, ours, theirs in zip(places, local.tolist(), remote.tolist(), strict=True):
            whole = self._bytes(ours[0], ours[1])
            parcel = Parcel(f"{told.attempt}", place.pool, place.layer, place.page, whole)
            payload = self._change(parcel)
            if payload is None:
                continue
            size = min(len(payload), ours[1])
            changed = torch.from_numpy(np.frombuffer(payload[:size], np.uint8).copy())
            self._scratch[used : used + size] = changed
            source = ours[0] if payload == whole else self._scratch.data_ptr() + used
            used += size
            rows.append(((source, size, ours[2]), (theirs[0], size, theirs[2])))
        sources, targets = zip(*rows, strict=True)
        return super().prepare(np.array(sources, np.uint64), np.array(targets, np.uint64), note)

    def _bytes(self, address: int, size: int) -> bytes:
        """Return the bytes at ``address``, which lies in one of the pools' tensors."""
        for memory in self._memory:
            at = address - memory.data_ptr()
            if 0 <= at < memory.numel():
                return memory[at : at + size].cpu().numpy().tobytes()
        raise LookupError(f"address {address:#x} is in none of the {len(self._memory)} tensors")


class DyingWire(_Through):
    """Raises the signal ``end_by`` at write number ``at``, after half of its tiles have landed.

    ``last_words`` is called before, so that what was recorded of the request can be read.
    """

    def __init__(
        self,
        wire: Wire,
        at: int,
        last_words: Callable[[], object],
        end_by: signal.Signals = signal.SIGKILL,
    ) -> None:
        super().__init__(wire)
        self._left = at
        self._last_words = last_words
        self._end_by = end_by

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """Prepare all tiles, or only half of them for the last write."""
        self._left -= 1
        if self._left:
            return super().prepare(local, remote, note)
        half = len(local) // 2
        return super().prepare(local[:half], remote[:half], b"")

    def begin(self, transfer: Transfer) -> None:
        """Forward to the real wire; after the last half write, die."""
        super().begin(transfer)
        if self._left:
            return
        while self.state(transfer) == "PROC":
            pass
        self._last_words()
        os.kill(os.getpid(), self._end_by)
