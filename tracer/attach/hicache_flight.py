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

    Generations are those at submission. ``pool`` names every pool of the group, as in findings;
    ``by`` is where it was submitted.
    """

    op: CopyOp
    state: CacheState
    pool: str
    host: Pages
    device: Pages
    host_generations: Pages
    device_generations: Pages
    by: Access
    #: What each pool was given, once the copy has begun; used on the bus's thread.
    parts: list[Part] = field(default_factory=list)
    #: The access of the thread that executes the copy, once it has begun.
    carrier: Access | None = None
    #: Layers that the copy itself has reported as arrived.
    arrived: list[int] = field(default_factory=list)
    #: If order is checked: the step at which a load writes each of the model's layers, and the stamp
    #: of the first; used on the bus's thread.
    promised: dict[int, Step] = field(default_factory=dict)
    first: Stamp | None = None
    #: ``Ownership.upset`` of both tiers when the pages were last found to be those submitted; used
    #: on the bus's thread.
    sure: tuple[int, int] | None = None
    key: OpId = field(default_factory=lambda: OpId(next(_numbers)))
    #: Whether bytes go to the device.
    loads: bool = field(init=False)
    #: The pages being written, and their generations.
    written: tuple[Pages, Pages] = field(init=False)

    def __post_init__(self) -> None:
        self.loads = self.op.kind == "load"
        host, device = (self.host, self.host_generations), (self.device, self.device_generations)
        self.written = device if self.loads else host

    @property
    def what(self) -> str:
        """Kind and id, as in ``load 7``."""
        return f"{self.op.kind} {self.op.op_id}"
