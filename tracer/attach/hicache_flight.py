"""One operation of ``hicache_dbg.pools`` between its submission and its acknowledgement."""

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from hicache_dbg.pools.geometry import IoBackend
from hicache_dbg.pools.host import Mirror
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.tracer.checks.completion import OpId
from hicache_dbg.tracer.checks.ordering_clocks import Stamp, Step
from hicache_dbg.tracer.checks.ownership import Pages
from hicache_dbg.tracer.checks.violation import Access

__all__ = ["Flight", "Part"]

_numbers = count(1)


class Part(NamedTuple):
    """What one pool of an operation was given: its own layers, and page ids at both ends."""

    mirror: Mirror
    backend: IoBackend
    layers: tuple[int, ...]
    host: Pages
    device: Pages


@dataclass(slots=True, eq=False)
class Flight:
    """An operation between its submission and its acknowledgement.

    Generations are those at submission. ``pool`` is every pool of the group, as findings name
    them, ``by`` where it was submitted.
    """

    op: CopyOp
    state: CacheState
    pool: str
    host: Pages
    device: Pages
    host_generations: Pages
    device_generations: Pages
    by: Access
    #: What each pool was given, once the copy has begun; as the bus's thread has it.
    parts: list[Part] = field(default_factory=list)
    #: Who carries the copy out, once it has begun.
    carrier: Access | None = None
    #: Layers that the mover itself has reported.
    arrived: list[int] = field(default_factory=list)
    #: Where order is looked at: the steps at which a load writes each of the model's layers, and the
    #: stamp of the first; as the bus's thread has them.
    promised: dict[int, Step] = field(default_factory=dict)
    first: Stamp | None = None
    #: What had befallen the pages of both tiers when they were last seen to be those that were
    #: submitted; as the bus's thread has it.
    sure: tuple[int, int] | None = None
    key: OpId = field(default_factory=lambda: OpId(next(_numbers)))
    #: Whether bytes go to the device.
    loads: bool = field(init=False)
    #: The pages that are written, and their generations.
    written: tuple[Pages, Pages] = field(init=False)

    def __post_init__(self) -> None:
        self.loads = self.op.kind == "load"
        host, device = (self.host, self.host_generations), (self.device, self.device_generations)
        self.written = device if self.loads else host

    @property
    def what(self) -> str:
        """``load 7``."""
        return f"{self.op.kind} {self.op.op_id}"
