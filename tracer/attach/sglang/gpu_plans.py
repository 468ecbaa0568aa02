"""What is known beforehand of a pool whose device end is on a GPU, and of each of its copy methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hicache_dbg.tracer.attach.sglang.copies import Given
from hicache_dbg.tracer.attach.sglang.gpu import IN_LINE_BYTES, LARGE_BYTES, Lane, Part
from hicache_dbg.tracer.attach.sglang.kinds import ARGUMENTS, LOAD
from hicache_dbg.tracer.attach.sglang.paths import page_starts
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.gpu_booked import Booked
    from hicache_dbg.tracer.digest.gpu import WholePages

__all__ = ["AtOnce", "DevicePool", "Plan"]

#: Numbers of indices of which a plan remembers what they take.
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool whose device end is on a GPU, ready to be digested there.

    Attributes:
        page_bytes: The bytes of one page of one layer, all components.
        whole: For each component the launch that digests all layers, where the digester has such.
        plans: What was found of each method so far.
    """

    record: PoolRecord
    lane: Lane
    views: Mapping[str, View]
    page_bytes: int
    whole: "tuple[tuple[str, WholePages], ...]" = ()
    plans: "dict[str, Plan]" = field(default_factory=dict)

    def plan(self, method: str, probe: LayerProbe) -> "Plan":
        """Return the plan of one of the pool's methods under this session's settings."""
        plan = self.plans.get(method)
        if plan is None or plan.probe is not probe:
            plan = self.plans[method] = Plan(self, method, probe)
        return plan


class AtOnce(NamedTuple):
    """Digests of all of a call's layers in one launch a component.

    Attributes:
        start: The first index that names a page.
        unit: From one such index to the next.
        many: How many pages that are.
        beside: Whether the launches have a stream of their own.
        during: Whether they run beside the call's own copies, rather than behind them.
        words: How many digests there will be.
        launches: Each call, its table of layers and where in the slot its digests begin, in bytes.
        parts: Which digests are where in the slot.
    """

    start: int
    unit: int
    many: int
    beside: bool
    during: bool
    words: int
    launches: tuple[tuple[Any, int, int], ...]
    parts: list[Part]


class Plan:
    """One copy method of one pool: where its arguments are, and what is to be done about a call.

    Args:
        pool: The pool.
        method: The method's name.
        probe: The session's, whose settings say what is wanted.

    Attributes:
        begins_with: The layers of a call as it comes: all of a backup, none of a load.
        booked: What operations need once they are over; given before the first one comes.
        highest: The highest number under which the method is given a layer.
        ordinal: Where a launch of whole pages reads indices: a device's number, -1 for the CPU.
        over: The device pool that the last call named, by its identity.
        passes: Whether our wrapper may step aside for a load's calls; None until somebody asks.
        timed: Whether SGLang's own events told how long the last call took.
        usual: Whether the method's first arguments are the device pool and both indices.
        ways: How so many indices are digested in one launch a component, where they are.
    """

    booked: "Booked"

    def __init__(self, pool: DevicePool, method: str, probe: LayerProbe) -> None:
        record, names = pool.record, ARGUMENTS[method]
        self.device_pool, self.probe, self.method = pool, probe, method
        self.lane, self.push, self.stream = pool.lane, probe.bus.push, pool.lane.stream
        self.op = Op.LOAD if method.startswith(LOAD) else Op.BACKUP
        self.loads = self.op is Op.LOAD
        self.wanted = probe.wants(record.mirror.pool, self.op)
        self.digests = probe.digests
        self.pool, self.what = record.mirror.pool, self.op.value
        self.layers = record.mirror.layers
        self.every, self.all = range(self.layers), tuple(range(self.layers))
        self.begins_with: tuple[int, ...] = () if self.loads else self.all
        self.components = len(pool.views)
        self.highest = max(record.geometry.positions, default=0) if record.geometry else 0
        self.timed = False
        self.passes: bool | None = None
        self.over = 0
        self.ordinal = -1 if pool.lane.device.index is None else pool.lane.device.index
        self.ways: dict[int, AtOnce] = {}
        self.usual = names[:3] == ("device_pool", "host_indices", "device_indices")
        self._at = {name: at for at, name in enumerate(names)}
        self._starts: dict[int, tuple[int, int] | None] = {}
        self._parts: dict[int, tuple[list[Part], list[int], int]] = {}

    def ends(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the indices of the host and of the device, as far as the call is given some."""
        names = ("host_indices", "device_indices")
        host, device = (self.argument(name, args, kwargs) for name in names)
        return host, device

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return one argument of a call by its name; None where it has none."""
        at = self._at.get(name, len(args))
        return args[at] if at < len(args) else kwargs.get(name)

    def given(  # noqa: PLR0917
        self,
        owner: Any,
        host: torch.Tensor,
        device: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        whom: tuple[Request, ...],
    ) -> Given:
        """Return a call of ``owner``'s method, with its indices as they were read."""
        over = self.argument("device_pool", args, kwargs)
        backend = str(self.argument("io_backend", args, kwargs) or "kernel")
        return Given(owner, self.method, host, device, backend, self.op, over, whom)

    def starts(self, owner: Any, count: int) -> tuple[int, int] | None:
        """Return which of ``count`` indices name pages: the first, and their distance; None if none does."""
        try:
            return self._starts[count]
        except KeyError:
            pass
        record = self.device_pool.record
        assert record.kind is not None  # noqa: S101 - a pool without a kind has no views
        if len(self._starts) > _MOST_KNOWN:
            self._starts.clear()
        rule = record.kind.rules[self.method]
        starts = self._starts[count] = page_starts(rule, owner, record.geometry, count)
        return starts

    def parts(self, pages: int) -> tuple[list[Part], list[int], int]:
        """Return what whole launches of so many pages leave in a slot: parts, their offsets, all words."""
        known = self._parts.get(pages)
        if known is None:
            if len(self._parts) > _MOST_KNOWN:
                self._parts.clear()
            size = self.layers * pages
            names = [name for name, _ in self.device_pool.whole]
            parts = [Part(name, 0, self.layers, at * size) for at, name in enumerate(names)]
            offsets = [8 * part.at for part in parts]
            known = self._parts[pages] = parts, offsets, size * len(parts)
        return known

    def way(self, owner: Any, count: int) -> AtOnce | None:
        """Return how ``count`` indices are digested in one launch a component; None if that is not so."""
        pool = self.device_pool
        starts = self.starts(owner, count) if self.digests and pool.whole else None
        if starts is None:
            return None
        start, unit = starts
        many = -(-(count - start) // unit)
        size = self.layers * many * pool.page_bytes
        if not many:
            return None
        during = size > LARGE_BYTES and not self.loads
        parts, offsets, words = self.parts(many)
        launches = tuple(
            (launch.sparing if during else launch.every, launch.bases, offset)
            for (_, launch), offset in zip(pool.whole, offsets, strict=True)
        )
        way = AtOnce(start, unit, many, size > IN_LINE_BYTES, during, words, launches, parts)
        if len(self.ways) > _MOST_KNOWN:
            self.ways.clear()
        self.ways[count] = way
        return way

    def pages(self, device: torch.Tensor, start: int, unit: int, stream: int) -> torch.Tensor:
        """Return the indices that name pages, on the device from this stream's next step on."""
        ids = device if device.dim() == 1 else device.reshape(-1)
        ids = ids[start::unit]
        if ids.device == self.lane.device:
            return ids
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, self.lane.device)):
            return ids.contiguous().to(self.lane.device, non_blocking=True)
