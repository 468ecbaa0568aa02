"""What is known beforehand of a pool whose device end is on a GPU, and of each of its copy methods."""

from collections.abc import Callable, Mapping
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

#: Most index counts for which a plan caches its results.
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool whose device end is on a GPU, ready to be digested there.

    Attributes:
        page_bytes: The bytes of one page of one layer, over all components.
        whole: The launches that digest all layers, by component; empty if the digester has none.
        plans: The plans made so far, by method.
    """

    record: PoolRecord
    lane: Lane
    views: Mapping[str, View]
    page_bytes: int
    whole: "tuple[tuple[str, WholePages], ...]" = ()
    plans: "dict[str, Plan]" = field(default_factory=dict)


class AtOnce(NamedTuple):
    """How to digest all layers of a call with one launch per component.

    Attributes:
        start: The position of the first index that names a page.
        unit: The distance from one such index to the next.
        many: The number of pages.
        beside: Whether the launches run on a stream of ours.
        during: Whether they run beside the call's own copies, rather than behind them.
        words: The number of digests.
        launches: Each launch, its table of layers, and where its digests go in the slot, in bytes.
        parts: Which digests are where in the slot.
        compiled: The same for the compiled helper, if there is one.
    """

    start: int
    unit: int
    many: int
    beside: bool
    during: bool
    words: int
    launches: tuple[tuple[Any, int, int], ...]
    parts: list[Part]
    compiled: Any = None


class Plan:
    """One copy method of one pool: where its arguments are, and how its calls are digested.

    Args:
        pool: The pool.
        method: The method's name.
        probe: The session's probe, whose settings say what is wanted.

    Attributes:
        begins_with: The layers of a new call: all for a backup, none for a load.
        booked: What operations need once they are over; set before the first one.
        compiled: Prepares a way for the compiled helper; None without a helper.
        driver: The driver's functions, for the helper.
        highest: The highest layer number that the method is given.
        ordinal: The device that a launch of whole pages reads indices from; -1 for the CPU.
        over: The identity of the device pool that the last call named.
        passes: Whether our wrapper may step aside for a load's calls; None until first needed.
        marks: The lane's events for reuse, and its ``slots``.
        sides: The streams of ours, by SGLang's.
        timed: Whether SGLang's own events timed the last call.
        usual: Whether the method's first arguments are the device pool and both index tensors.
        ways: The :class:`AtOnce` by number of indices, where there is one.
    """

    __slots__ = (
        *("_at", "_parts", "_starts", "all", "begins_with", "booked", "compiled", "components"),
        *(
            "device_pool",
            "digests",
            "driver",
            "every",
            "highest",
            "lane",
            "layers",
            "loads",
            "marks",
            "method",
        ),
        *("op", "ordinal", "over", "passes", "pool", "probe", "push", "sides", "slots", "stream"),
        *("timed", "usual", "wanted", "ways", "what"),
    )

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
        self.marks, self.slots, self.sides = pool.lane.marks, pool.lane.slots, pool.lane.sides
        self.driver: Any = None
        self.compiled: Callable[[AtOnce], Any] | None = None
        self._at = {name: at for at, name in enumerate(names)}
        self._starts: dict[int, tuple[int, int] | None] = {}
        self._parts: dict[int, tuple[list[Part], list[int], int]] = {}

    def ends(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the host and the device indices of a call; None for one that it is not given."""
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
        """Return which of ``count`` indices name pages, as ``(first, distance)``; None if none does."""
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
        """Return the parts that whole launches leave in a slot, their offsets, and the total words."""
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
        """Return how to digest ``count`` indices in one launch per component; None if not possible."""
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
        if self.compiled is not None:
            way = way._replace(compiled=self.compiled(way))
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
