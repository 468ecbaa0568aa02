"""What is known beforehand of a pool whose device end is on a GPU, and of each of its copy methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hicache_dbg.tracer.attach.sglang.copies import Given
from hicache_dbg.tracer.attach.sglang.gpu import A_LAUNCH_BYTES, IN_LINE_BYTES, Lane, Part
from hicache_dbg.tracer.attach.sglang.kinds import ARGUMENTS, LOAD
from hicache_dbg.tracer.attach.sglang.paths import page_starts
from hicache_dbg.tracer.attach.sglang.probe import LayerProbe
from hicache_dbg.tracer.attach.sglang.registry import PoolRecord
from hicache_dbg.tracer.attach.sglang.whose import Request
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.view import View

if TYPE_CHECKING:
    from hicache_dbg.tracer.attach.sglang.gpu_ops import Booked
    from hicache_dbg.tracer.digest.gpu import WholePages

__all__ = ["AtOnce", "DevicePool", "Plan"]


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool whose device end is on a GPU, ready to be digested there.

    ``page_bytes`` are those of one page of one layer, all components; ``whole`` are launches that
    digest all layers of each component, where the digester has such.
    """

    record: PoolRecord
    lane: Lane
    views: Mapping[str, View]
    page_bytes: int
    whole: "tuple[tuple[str, WholePages], ...]" = ()
    plans: "dict[str, Plan]" = field(default_factory=dict)

    def plan(self, method: str, probe: LayerProbe) -> "Plan":
        """Of one of the pool's methods, under the settings of this session."""
        plan = self.plans.get(method)
        if plan is None or plan.probe is not probe:
            plan = self.plans[method] = Plan(self, method, probe)
        return plan


class AtOnce(NamedTuple):
    """Digests of all of a call's layers in one launch a component, behind its copies.

    ``start``, ``unit`` and ``many`` say which of the indices name pages, and how many pages that are;
    ``beside`` whether the launches have a stream of their own. Each of ``launches`` is the call, its
    table of layers and where in the slot its digests begin, in bytes.
    """

    start: int
    unit: int
    many: int
    beside: bool
    words: int
    parts: list[Part]
    launches: tuple[tuple[Any, int, int], ...]


class Plan:
    """One copy method of one pool: where its arguments are, and what is to be done about a call.

    Args:
        pool: the pool.
        method: the method's name.
        probe: the session's, whose settings say what is wanted.
    """

    def __init__(self, pool: DevicePool, method: str, probe: LayerProbe) -> None:
        record, names = pool.record, ARGUMENTS[method]
        self.device_pool, self.probe, self.method = pool, probe, method
        self.push, self.stream = probe.bus.push, pool.lane.stream
        self.op = Op.LOAD if method.startswith(LOAD) else Op.BACKUP
        self.loads = self.op is Op.LOAD
        self.wanted = probe.wants(record.mirror.pool, self.op)
        self.digests = probe.digests
        self.pool, self.what = record.mirror.pool, self.op.value
        self.layers = record.mirror.layers
        self.every, self.all = range(self.layers), tuple(range(self.layers))
        self.components = len(pool.views)
        #: The highest number under which the method is given a layer.
        self.highest = max(record.geometry.positions, default=0) if record.geometry else 0
        #: Whether SGLang's own events tell how long the device took.
        self.timed = False
        #: Whether our wrapper may step aside for a load's calls; None as long as nobody asked.
        self.passes: bool | None = None
        #: The device pool that the last call named, by its identity.
        self.over = 0
        self._record, self._device = record, pool.lane.device
        self._ranges: dict[int, tuple[range, ...]] = {}
        self._parts: dict[int, tuple[list[Part], list[int], int]] = {}
        self._whole, self._page_bytes = pool.whole, pool.page_bytes
        self._names = tuple(name for name, _ in pool.whole)
        #: Where the launch of whole pages reads indices: a device's number, -1 for the CPU.
        self.ordinal = -1 if self._device.index is None else self._device.index
        #: What operations need once they are over; given before the first one comes.
        self.booked: Booked
        #: How so many indices are digested in one launch a component, where they are.
        self.ways: dict[int, AtOnce] = {}
        self._starts: dict[int, tuple[int, int] | None] = {}
        self._at = {name: at for at, name in enumerate(names)}
        self.usual = names[:3] == ("device_pool", "host_indices", "device_indices")

    def ends(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The indices of the host and of the device, as far as the call is given some."""
        names = ("host_indices", "device_indices")
        host, device = (self.argument(name, args, kwargs) for name in names)
        return host, device

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One argument of a call by its name; None where it has none."""
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
        """A call of ``owner``'s method, with its indices as they were read."""
        over = self.argument("device_pool", args, kwargs)
        backend = str(self.argument("io_backend", args, kwargs) or "kernel")
        return Given(owner, self.method, host, device, backend, self.op, over, whom)

    def starts(self, owner: Any, count: int) -> tuple[int, int] | None:
        """Which of ``count`` indices name pages: the first, and their distance; None: none does."""
        try:
            return self._starts[count]
        except KeyError:
            return self._known(owner, count)

    def parts(self, pages: int) -> tuple[list[Part], list[int], int]:
        """What whole launches of so many pages leave in a slot: parts, where each begins, and all words."""
        known = self._parts.get(pages)
        if known is None:
            if len(self._parts) > 4096:
                self._parts.clear()
            size = self.layers * pages
            parts = [Part(name, 0, self.layers, at * size) for at, name in enumerate(self._names)]
            offsets = [8 * part.at for part in parts]
            known = self._parts[pages] = parts, offsets, size * len(parts)
        return known

    def way(self, owner: Any, count: int) -> AtOnce | None:
        """How ``count`` indices are digested in one launch a component; None where it takes more, or none."""
        starts = self.starts(owner, count) if self.digests and self._whole else None
        if starts is None:
            return None
        start, unit = starts
        many = -(-(count - start) // unit)
        size = self.layers * many * self._page_bytes
        if not many or (size > A_LAUNCH_BYTES and not self.loads):
            return None
        parts, offsets, words = self.parts(many)
        launches = tuple(
            (launch.every, launch.bases, offset)
            for (_, launch), offset in zip(self._whole, offsets, strict=True)
        )
        way = AtOnce(start, unit, many, size > IN_LINE_BYTES, words, parts, launches)
        if len(self.ways) > 4096:
            self.ways.clear()
        self.ways[count] = way
        return way

    def ranges(self, size: int) -> tuple[range, ...]:
        """In how many launches ``size`` bytes of a backup's layers are digested.

        Kernels of SGLang's that copy want a multiprocessor for themselves, and find one between launches.
        (Loads of 0.5.23 do not, and lose by it.)
        """
        parts = min(self.layers, max(1, size // (self.components * A_LAUNCH_BYTES)))
        ranges = self._ranges.get(parts)
        if ranges is None:
            ends = [self.layers * part // parts for part in range(parts + 1)]
            ranges = tuple(range(first, last) for first, last in pairwise(ends))
            self._ranges[parts] = ranges
        return ranges

    def pages(self, device: torch.Tensor, start: int, unit: int, stream: int) -> torch.Tensor:
        """The indices that name the call's pages, on the device from this stream's next step on."""
        ids = device if device.dim() == 1 else device.reshape(-1)
        ids = ids[start::unit]
        if ids.device == self._device:
            return ids
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, self._device)):
            return ids.contiguous().to(self._device, non_blocking=True)

    def _known(self, owner: Any, count: int) -> tuple[int, int] | None:
        record = self._record
        assert record.kind is not None  # noqa: S101 - a pool without a kind has no views
        if len(self._starts) > 4096:
            self._starts.clear()
        rule = record.kind.rules[self.method]
        starts = self._starts[count] = page_starts(rule, owner, record.geometry, count)
        return starts
