"""The position of this process among SGLang's tensor, pipeline and data parallel ranks."""

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hicache_dbg.tracer.settings import Settings

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Place", "of_caller", "of_running", "placed"]

#: The function that SGLang runs in each scheduler process. It loads plugins before the ranks are
#: stored anywhere else, but they are among its arguments in every version.
_SCHEDULER = "run_scheduler_process"
_DP_RANK = "SGLANG_DP_RANK"


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks and sizes. ``replicas`` counts data-parallel copies that are separate worlds.

    With attention data parallelism all copies form one world, and ``replicas`` is 1.
    """

    tp: int
    pp: int
    dp: int
    tp_size: int
    pp_size: int
    replicas: int

    @property
    def rank(self) -> int:
        """One number for the process, unique within the service."""
        replica = self.dp if self.replicas > 1 else 0
        return (replica * self.pp_size + self.pp) * self.tp_size + self.tp

    @property
    def ranks(self) -> int:
        """Number of processes in the service."""
        return self.replicas * self.pp_size * self.tp_size

    def __str__(self) -> str:
        return f"tp={self.tp} pp={self.pp} dp={self.dp}"


def of_caller() -> Place | None:
    """Return the place of the SGLang scheduler in this call stack; None elsewhere."""
    return _under(sys._getframe(1))  # noqa: SLF001 - the documented way to one's caller


def of_running() -> Place | None:
    """Return the place of the scheduler that runs on any thread of this process."""
    frames = sys._current_frames().values()  # noqa: SLF001 - the documented way to other threads
    return next((place for frame in frames if (place := _under(frame)) is not None), None)


def _under(frame: "FrameType | None") -> Place | None:
    while frame is not None:
        if frame.f_code.co_name == _SCHEDULER:
            return _place(frame.f_locals)
        frame = frame.f_back
    return None


def placed(settings: Settings, place: Place | None) -> Settings:
    """Return ``settings`` with this process's rank; without a place, torch's if it has a group."""
    if place is not None:
        return replace(settings, rank=place.rank, ranks=place.ranks)
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return settings
    return replace(settings, rank=distributed.get_rank(), ranks=distributed.get_world_size())


def _place(arguments: dict[str, Any]) -> Place | None:
    """Return the place that a scheduler process was started with, from its function's arguments."""
    server = arguments.get("server_args")
    if "tp_rank" not in arguments or server is None:
        return None
    dp = arguments.get("dp_rank")
    replicas = int(getattr(server, "dp_size", 1) or 1)
    if getattr(server, "enable_dp_attention", False):
        replicas = 1
    return Place(
        tp=int(arguments["tp_rank"]),
        pp=int(arguments.get("pp_rank") or 0),
        dp=int(os.environ.get(_DP_RANK, "0")) if dp is None else int(dp),
        tp_size=int(getattr(server, "tp_size", 1) or 1),
        pp_size=int(getattr(server, "pp_size", 1) or 1),
        replicas=replicas,
    )
