# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Indices on a fake device: nothing of them is known before the device reaches them."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from released_traced import Traced

import hicache_dbg.tracer
from hicache_dbg.tracer.attach.sglang.late_indices import LateIndices
from hicache_dbg.tracer.ledger import Pages

__all__ = ["Device", "late", "reads_of_ours"]

_OURS = Path(hicache_dbg.tracer.__file__).parent
_READS = ("numpy", "tolist", "item", "cpu", "__array__", "__int__", "__bool__")


class Device:
    """The reader of a device that completes what was requested when the test says so."""

    def __init__(self) -> None:
        self.over = True
        self.broken = False
        self.batches: list[int] = []

    def __call__(self, _: torch.device) -> "Device":
        """Read as the reader of any device."""
        return self

    def keep(self, indices: torch.Tensor) -> torch.Tensor:
        """Copy within the device."""
        return indices.clone()

    def read(self, kept: Sequence[torch.Tensor]) -> "_Reading":
        """Begin to read, on the bus thread."""
        assert threading.current_thread() is not threading.main_thread()
        if self.broken:
            raise RuntimeError("the device is lost")
        self.batches.append(len(kept))
        return _Reading(self, list(kept))


class _Reading:
    def __init__(self, device: Device, kept: list[torch.Tensor]) -> None:
        self._device, self._kept = device, kept

    def poll(self) -> list[Pages] | None:
        return [one.numpy() for one in self._kept] if self._device.over else None


def late(run: Traced) -> Device:
    """From now on, treat every index tensor of this attachment as one on a device."""
    device = Device()
    run.attachment.observer.owners.indices = LateIndices(device, lambda _: True)
    return device


@contextmanager
def reads_of_ours() -> Iterator[set[str]]:
    """Collect the threads on which our code reads the values of a tensor."""
    threads: set[str] = set()

    def watching(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if Path(sys._getframe(1).f_code.co_filename).is_relative_to(_OURS):
                threads.add(threading.current_thread().name)
            return original(tensor, *args, **kwargs)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in _READS:
            patch.setattr(torch.Tensor, name, watching(name))
        yield threads
