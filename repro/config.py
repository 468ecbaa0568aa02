"""What a run is asked to do, validated before anything is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from hicache_dbg.pools.choices import IndexDtype, IoBackend, Layout

if TYPE_CHECKING:
    from hicache_dbg.repro.poolset import PoolSet

__all__ = ["DEVICES", "MODELS", "POOLS", "ConfigError", "RunConfig"]

POOLS = ("mla_index_k", "mha", "deepseek_v4")
"""Pool sets that a run can keep its cache in; what they are is in :mod:`hicache_dbg.repro.sets`."""

DEVICES = ("cpu", "cuda")
"""Where the model and its pools can live."""

MODELS = ("smollm2",)
"""Real models that chats can be held with."""

_LIMITS = {
    "sessions": (1, 10_000),
    "rounds": (1, 10_000),
    "ctx": (4, 1_000_000),
    "max_tokens": (1, 1_000_000),
    "device_pages": (1, 100_000_000),
    "host_pages": (1, 100_000_000),
    "max_running": (1, 10_000),
    "scale": (1, 512),
}
"""Least and most of each: a number beyond is taken for a typing error."""


class ConfigError(ValueError):
    """A run that cannot be started as requested.

    The message names the value and what is allowed.
    """


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of one run.

    Attributes:
        sessions: number of concurrent agent sessions.
        rounds: most replies per session.
        ctx: tokens of a session's first prompt, including the shared system prompt; None chooses by
            pool set.
        max_tokens: most tokens per reply.
        timeout: seconds a turn may take from being ready to its last token.
        tag: a name for the run, kept in its result.
        seed: seed of the prompts (the model's weights have their own).
        layout: layout of the host pools.
        index_dtype: storage type of index-K on the device, ``bf16`` or ``fp8``.
        device_pages: pages per device pool; None chooses by pool set and workload, enough for any
            one session but not for many.
        host_pages: pages per host pool; None means enough for all sessions, or too few if there is
            storage.
        pools: the pool set, one of ``POOLS``.
        io_backend: ``kernel`` or ``direct``; empty chooses by layout.
        device: where model and pools live, one of ``DEVICES``.
        max_running: most turns decoded together.
        scale: tokens that stand for one block of a trace in a replay.
        storage: the tier behind the host, see :mod:`hicache_dbg.repro.storage`; empty for none.
        kill: whether a process with the same run over the same store is killed while it stores,
            before this run begins; with ``pd``, the process that computes prompts, during a
            handover.
        pd: whether prompts and replies are computed in separate processes, see
            :mod:`hicache_dbg.repro.pd`.
        model: a real model for chats, one of ``MODELS``; empty for the pool set's small model with
            agent sessions.
    """

    sessions: int = 30
    rounds: int = 4
    ctx: int | None = None
    max_tokens: int = 64
    timeout: float = 150.0
    tag: str = ""
    seed: int = 0
    layout: str = "page_first"
    index_dtype: IndexDtype = "bf16"
    device_pages: int | None = None
    host_pages: int | None = None
    pools: str = "mla_index_k"
    io_backend: str = ""
    device: str = "cpu"
    max_running: int = 8
    scale: int = 16
    storage: str = ""
    kill: bool = False
    pd: bool = False
    model: str = ""

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            _require(value is None or value >= least, name, value, f"at least {least}")
            _require(value is None or value <= most, name, value, f"at most {most}")
        _require(self.seed >= 0, "seed", self.seed, "at least 0")
        _require(self.timeout > 0, "timeout", self.timeout, "above 0 seconds")
        _require(
            bool(self.storage) or self.pd or not self.kill,
            "kill",
            self.kill,
            "a --storage to kill it over, or --pd",
        )
        _require(
            not (self.pd and self.storage),
            "pd",
            self.pd,
            "no --storage with it: leave one of them out",
        )
        if self.model:
            self._require_of_chats()
        _one_of("index_dtype", self.index_dtype, get_args(IndexDtype))
        _one_of("pools", self.pools, POOLS)
        _one_of("device", self.device, DEVICES)
        _one_of("layout", self.layout, self.pool_set.layouts, f" for pools {self.pools}")
        if self.io_backend:
            _one_of("io_backend", self.io_backend, self._backends, f" for layout {self.layout}")

    def _require_of_chats(self) -> None:
        """Refuse options that chats with a real model cannot honor."""
        _one_of("model", self.model, MODELS)
        for name in ("pools", "index_dtype", "ctx"):
            value = getattr(self, name)
            given = value != type(self).__dataclass_fields__[name].default
            _require(not given, name, repr(value), f"none with --model: {self.model} has its own")
        _require(self.device == "cpu", "device", repr(self.device), "'cpu' with --model")

    @property
    def pool_set(self) -> "PoolSet":
        """The pool set called ``pools``, or that of the real model."""
        from hicache_dbg.repro.sets import MODEL_SETS, POOL_SETS

        return MODEL_SETS[self.model] if self.model else POOL_SETS[self.pools]

    @property
    def weights(self) -> str:
        """Name of the model that wrote the pages: what they mean to another run."""
        return f"repro/{self.model or self.pools}"

    @property
    def first_prompt(self) -> int:
        """Tokens of a session's first prompt."""
        return self.pool_set.ctx if self.ctx is None else self.ctx

    @property
    def backend(self) -> IoBackend:
        """The io backend in force."""
        return IoBackend(self.io_backend) if self.io_backend else self._backends[0]

    def pages_of(self, tokens: int) -> int:
        """Return the number of pages that a sequence of ``tokens`` tokens takes."""
        return -(-tokens // self.pool_set.page_size)

    @property
    def _backends(self) -> tuple[IoBackend, ...]:
        """Io backends that support the layout, the preferred one first."""
        from hicache_dbg.pools.validate import LAYOUTS_OF

        layout = Layout(self.layout)
        return tuple(backend for backend, layouts in LAYOUTS_OF.items() if layout in layouts)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, expected {allowed}")


def _one_of(name: str, value: str, allowed: Iterable[str], where: str = "") -> None:
    names = list(allowed)
    choice = ", ".join(names) if len(names) == 1 else f"one of {', '.join(names)}"
    _require(value in names, name, repr(value), choice + where)
