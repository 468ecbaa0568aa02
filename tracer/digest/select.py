"""Choosing the digester for a device."""

import importlib.util
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.digest.watches import Watches

__all__ = ["DeviceDigester", "digester_for"]

_log = logging.getLogger(__name__)


class DeviceDigester(Protocol):
    """The interface of both device digesters; see :class:`hicache_dbg.tracer.digest.gpu.GpuDigester`."""

    device: torch.device

    def prepare(self, view: View, *, partial: bool = False) -> None:
        """Do the one-time work for a view, to keep it off the hot path."""
        ...

    def digest(
        self,
        view: View,
        layers: Sequence[int],
        pages: torch.Tensor,
        first: int = 0,
        last: int | None = None,
        *,
        out: torch.Tensor,
        unit: int = 1,
        stream: int | None = None,
    ) -> Literal["graph"] | None:
        """Enqueue digests of tiles into ``out``."""
        ...

    def watches(self) -> "Watches | None":
        """Return what watches whole operations there; None if it can only take single digests."""
        ...


def digester_for(device: torch.device | str) -> DeviceDigester:
    """Return the Triton digester on an NVIDIA GPU, else the torch one, with a warning the first time."""
    device = torch.device(device)
    lacking = _lacking(device.type)
    if lacking is None:
        from hicache_dbg.tracer.digest.gpu import GpuDigester

        return GpuDigester(device)
    _say_once(f"digests on {device.type} run as torch operations, not as one kernel: {lacking}")
    from hicache_dbg.tracer.digest.torch_digester import TorchDigester

    return TorchDigester(device)


def _lacking(kind: str) -> str | None:
    """Return what the kernels need and this machine lacks; None if nothing."""
    if kind != "cuda":
        return "the kernels need a CUDA device"
    if torch.version.hip:
        return "the launcher calls the CUDA driver, and this torch is built for ROCm"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


@lru_cache
def _say_once(message: str) -> None:
    _log.warning(message)
