"""What a run is asked to do, checked before anything is built."""

from dataclasses import dataclass
from typing import get_args

from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.kinds import IndexDtype

__all__ = ["PAGE_SIZE", "POOL_SETS", "ConfigError", "RunConfig"]

PAGE_SIZE = 64
"""Tokens a page, in every pool of a run."""

POOL_SETS = ("mla_index_k",)
"""The pool sets that the model can keep its cache in."""

#: io backend of each layout, where none is asked for.
_NATURAL_BACKEND = {
    Layout.LAYER_FIRST: IoBackend.KERNEL,
    Layout.PAGE_FIRST: IoBackend.KERNEL,
    Layout.PAGE_FIRST_DIRECT: IoBackend.DIRECT,
}

_COUNTS = (
    "sessions",
    "rounds",
    "max_tokens",
    "device_pages",
    "host_pages",
    "max_running",
    "scale",
)


class ConfigError(ValueError):
    """A run that cannot be started as asked; the message says which value and what is allowed."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of one run.

    Attributes:
        sessions: agent sessions that run side by side.
        rounds: replies a session gets at most.
        ctx: tokens of a session's first prompt, the shared system prompt among them.
        max_tokens: tokens of a reply at most.
        timeout: seconds a turn may take from being ready to its last token.
        tag: a name for the run, carried into its result.
        seed: of the prompts (the model's weights have their own).
        layout: of the host pools.
        index_dtype: what the device stores index-K in, ``bf16`` or ``fp8``.
        device_pages: pages of ``PAGE_SIZE`` tokens in each device pool; None: what the workload
            has for a default, enough for any one session but not for many.
        host_pages: pages in each host pool.
        pools: the pool set, one of ``POOL_SETS``.
        io_backend: ``kernel`` or ``direct``; empty: what the layout is made for.
        max_running: turns that are decoded together at most.
        scale: tokens a block of a trace stands for in a replay.
    """

    sessions: int = 30
    rounds: int = 4
    ctx: int = 300
    max_tokens: int = 64
    timeout: float = 150.0
    tag: str = ""
    seed: int = 0
    layout: str = "page_first"
    index_dtype: IndexDtype = "bf16"
    device_pages: int | None = None
    host_pages: int = 2560
    pools: str = "mla_index_k"
    io_backend: str = ""
    max_running: int = 8
    scale: int = 16

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1")
        _require(self.ctx >= 4, "ctx", self.ctx, "at least 4")
        _require(self.seed >= 0, "seed", self.seed, "at least 0")
        _require(self.timeout > 0, "timeout", self.timeout, "above 0 seconds")
        _one_of("layout", self.layout, [layout.value for layout in _NATURAL_BACKEND])
        _one_of("index_dtype", self.index_dtype, get_args(IndexDtype))
        _one_of("pools", self.pools, POOL_SETS)
        if self.io_backend:
            _one_of("io_backend", self.io_backend, [backend.value for backend in IoBackend])

    @property
    def backend(self) -> IoBackend:
        """The io backend in force."""
        return IoBackend(self.io_backend or _NATURAL_BACKEND[Layout(self.layout)])


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, expected {allowed}")


def _one_of(name: str, value: str, allowed: tuple[str, ...] | list[str]) -> None:
    _require(value in allowed, name, repr(value), f"one of {', '.join(allowed)}")
