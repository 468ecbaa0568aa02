"""Digests of tiles on any device, behind one interface."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.digest.cpu import CpuDigester
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    import torch

    from hicache_dbg.tracer.digest.select import DeviceDigester
    from hicache_dbg.tracer.digest.watch import Wanted, Watch

__all__ = ["DigestRefusedError", "TileDigester"]


class DigestRefusedError(Exception):
    """No digest was taken, for a benign ``reason``: ``graph`` while a CUDA graph is being captured."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no digest was taken: {reason}")
        self.reason = reason


class TileDigester:
    """Digests tiles on any device, for an engine whose own worker waits for its copies.

    Whole operations on a CUDA device are watched (:meth:`watch`): only the bus reads them back. Other
    tiles there are digested on a stream of ours, one per thread, and copied into pinned memory. Call
    :meth:`join` before reading those digests, and before the engine considers the operation complete.
    ``beside`` is passed to :class:`CpuDigester`.
    """

    def __init__(self, *, beside: bool = False) -> None:
        self._cpu = CpuDigester(beside=beside)
        self._devices: dict[str, _Device] = {}
        self._lock = threading.Lock()

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: npt.NDArray[np.int64],
        first: int = 0,
        last: int | None = None,
    ) -> npt.NDArray[np.uint64]:
        """Return XXH3-64 of slots ``first .. last - 1`` of each tile: uint64 [layers, pages].

        See :meth:`CpuDigester.digest` for arguments and errors.

        Raises:
            DigestRefusedError: the caller is capturing a CUDA graph.
        """
        if view.device == "cpu":
            return self._cpu.digest(view, layers, pages, first, last)
        return self._device(view.device).digest(view, layers, pages, first, last)

    def watch(self, wanted: "Wanted") -> "Watch | None":
        """Start digesting, or comparing, a whole operation beside the engine's own work.

        Returns:
            None where this is not possible: on the CPU, without the kernels, or while the bus lags far
            behind. Use :meth:`digest` then.

        Raises:
            DigestRefusedError: the caller is capturing a CUDA graph.
        """
        name = wanted.view.device
        if name == "cpu":
            return None
        device = self._devices.get(name) or self._device(name)
        if device.captures():
            raise DigestRefusedError("graph")
        return device.watches.watch(wanted) if device.watches is not None else None

    def join(self) -> None:
        """Wait until every digest that this thread requested can be read."""
        for device in tuple(self._devices.values()):  # another thread may add one
            device.join()

    def _device(self, name: str) -> "_Device":
        with self._lock:
            device = self._devices.get(name)
            if device is None:
                device = self._devices[name] = _Device(name)
            return device


class _Device:
    """One CUDA device: its digester, and each thread's stream with the tensors in use on it."""

    def __init__(self, name: str) -> None:
        import torch

        from hicache_dbg.tracer.digest.select import digester_for

        self.captures = torch.cuda.is_current_stream_capturing
        self._name = name
        self._digester: DeviceDigester = digester_for(name)
        self.watches = self._digester.watches()
        self._local = threading.local()

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: npt.NDArray[np.int64],
        first: int,
        last: int | None,
    ) -> npt.NDArray[np.uint64]:
        import torch

        outside = pages[(pages < 0) | (pages >= view.pages)]
        if outside.size:
            raise IndexError(
                f"{view.pool}.{view.component}: page {outside[0]} is outside the {view.tier} view's "
                f"{view.pages} pages"
            )
        shape = (len(layers), len(pages))
        stream, under_way = self._own()
        with torch.cuda.stream(stream):
            ids = torch.from_numpy(np.ascontiguousarray(pages)).to(self._digester.device)
            out = torch.empty(shape, dtype=torch.int64, device=self._digester.device)
        host = torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=True)
        refused = self._digester.digest(
            view, tuple(layers), ids, first, last, out=out, stream=stream.cuda_stream
        )
        if refused is not None:
            raise DigestRefusedError(refused)
        with torch.cuda.stream(stream):
            host.copy_(out, non_blocking=True)
        under_way.extend((ids, out, host))  # the device may still read and write them
        return host.numpy().view(np.uint64)

    def join(self) -> None:
        stream, under_way = self._own()
        if under_way:
            stream.synchronize()
            under_way.clear()

    def _own(self) -> "tuple[torch.cuda.Stream, list[torch.Tensor]]":
        """Return this thread's stream, and the tensors in use on it."""
        import torch

        if not hasattr(self._local, "stream"):
            self._local.stream = torch.cuda.Stream(self._name)
            self._local.under_way = []
        return self._local.stream, self._local.under_way
