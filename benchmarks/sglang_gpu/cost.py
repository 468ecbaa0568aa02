# mypy: disable-error-code="import-not-found"
"""What tracing costs: streams of operations, and the host's time for one; attached over detached.

An operation is over when SGLang's own event of its end has come, which is behind the digests while we
are attached.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from builders import index_k, mha, mla, v4
from driving import Mover, indices
from setups import DEVICE, Build, Setup
from tracing import Row, Traced

from hicache_dbg.tracer.settings import Native

__all__ = ["cost"]

LAYERS, OPS, PAIRS = 61, 32, 9
#: Sets of pages that a stream's operations use in turn, and so the most that are under way.
SETS = 4


@dataclass(frozen=True)
class Stream:
    """Back-to-back operations on one pool, about 150 MB each."""

    name: str
    build: Build
    layout: str
    layers: int
    pages: int


STREAMS = (
    Stream("mla", mla, "layer_first", LAYERS, 32),
    Stream("mla", mla, "page_first", LAYERS, 32),
    Stream("mha", mha, "layer_first", 32, 18),
    Stream("c4", v4("deepseek_v4_c4", 37440, 256), "layer_first", 43, 96),
)
FEW, ROW = 4, 32
#: Rounds of the host's rows: they are short, and the host's state changes. A load calls SGLang once a
#: layer, which varies by more than what we add.
ROUNDS = {"backup": 25, "load": 60}
#: Operations ahead of those that are timed: the first ones behind a switch take longer, once.
UNTIMED = 8
#: Operations in a row: a load launches a kernel a layer, and the driver queues 1,024 without waiting.
TIMED = {"backup": ROW - UNTIMED, "load": 12}
#: How far apart single operations are, in seconds: the bus judges each before the next one.
APART_S = 0.03
#: Operations digested beside the copy, and on its own stream.
HOST: tuple[tuple[str, Build], ...] = (("mla", mla), ("index_k", index_k))


def cost() -> Iterator[Row]:
    """Yield the ratios of streams, then the host's time over ``add_``."""
    for stream in STREAMS:
        yield from _streams(stream)
    for name, build in HOST:
        yield from _host(name, build)


class _Ops:
    """Operations on disjoint sets of pages, used in turn."""

    def __init__(self, setup: Setup, count: int, sets: int) -> None:
        order = torch.randperm(sets * count)
        self._host = [indices(part, setup.page) for part in order.split(count)]
        device = torch.randperm(sets * count).split(count)
        self._device = [indices(part, setup.page).to(DEVICE) for part in device]
        self._mover, self._sets = Mover(setup, "kernel"), sets

    def run(self, kind: str, number: int) -> Any:
        """Enqueue operation ``number``, and return the event of its end."""
        at = number % self._sets
        return getattr(self._mover, kind)(self._host[at], self._device[at])


def _wall(ops: _Ops, kind: str, count: int) -> float:
    """Return the seconds until all operations are over; pages are reused only after their event.

    One operation goes before: the first since attaching prepares what all others use.
    """
    ops.run(kind, 0).synchronize()
    torch.cuda.synchronize()
    began, ends = time.perf_counter(), list[Any]()
    for number in range(count):
        if number >= SETS:
            ends[number - SETS].synchronize()
        ends.append(ops.run(kind, number))
    for end in ends[-SETS:]:
        end.synchronize()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _in_a_row(ops: _Ops, kind: str, own: Callable[[], float]) -> tuple[float, float]:
    """Return the host's microseconds per operation, of many in a row that only the host limits.

    ``own`` returns the seconds of them that are our own so far, which come second.
    """
    for number in range(UNTIMED):
        ops.run(kind, number)
    torch.cuda.synchronize()
    count, before = TIMED[kind], own()
    began = time.perf_counter()
    ends = [ops.run(kind, UNTIMED + number) for number in range(count)]
    spent = time.perf_counter() - began
    ours = own() - before
    for end in ends:
        end.synchronize()
    return spent / count * 1e6, ours / count * 1e6


def _alone(ops: _Ops, kind: str, count: int) -> float:
    """Return the same for operations far apart, whose code and data have left the caches."""
    spent: list[float] = []
    for number in range(count):
        torch.cuda.synchronize()
        time.sleep(APART_S)
        began = time.perf_counter()
        ops.run(kind, number)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1e6


def _compare(
    modes: Sequence[Traced | None], measure: Callable[[], float], rounds: int
) -> list[list[float]]:
    """Measure with each attachment, and with none, in rounds of alternating order; return a list of each.

    All are detached before and behind.
    """
    values: list[list[float]] = [[] for _ in modes]
    for number in range(rounds + 2):
        for traced, mine in list(zip(modes, values, strict=True))[:: (1, -1)[number % 2]]:
            if traced is not None:
                traced.attachment.attach()
            value = measure()
            if traced is not None:
                traced.take()  # judged before anything else is measured
                traced.attachment.detach()
            if number > 1:
                mine.append(value)
    return values


class _Added(NamedTuple):
    """What is added to ``bare``, in us: the median of the rounds' differences, and its standard error."""

    us: float
    error: float

    @classmethod
    def of(cls, ours: list[float], bare: list[float]) -> "_Added":
        more = [a - b for a, b in zip(ours, bare, strict=True)]
        middle = statistics.median(more)
        # of a normal distribution: 1.48 deviations of the median are one sigma, 1.25 its median's error
        spread = 1.48 * statistics.median(abs(one - middle) for one in more)
        return cls(middle, 1.25 * spread / len(more) ** 0.5)

    def over(self, add: float) -> str:
        """Return it as a multiple of an ``add_``, which takes ``add`` us."""
        return f"{self.us / add:.2f} add_ (+{self.us:.1f} us, standard error {self.error:.1f})"


def _streams(stream: Stream) -> Iterator[Row]:
    traced = Traced()
    pages = stream.pages
    setup = stream.build(stream.layout, stream.layers, SETS * pages)
    ops = _Ops(setup, pages, SETS)
    for number in range(SETS):
        ops.run("backup", number)
    size = sum(t[0].nbytes for t in setup.devices) * setup.rows * pages * OPS
    traced.attachment.detach()
    for kind in ("backup", "load"):
        ours, bare = _compare((traced, None), lambda kind=kind: _wall(ops, kind, OPS), PAIRS)  # type: ignore[misc]
        ratios = [a / b for a, b in zip(ours, bare, strict=True)]
        ratio = statistics.median(ratios)
        speed = size / statistics.median(ours) / 1e9
        detail = f"{ratio:.4f} ({min(ratios):.4f}..{max(ratios):.4f}), {speed:.1f} GB/s"
        case = f"{stream.name} {stream.layout}, {kind}s, {OPS} of {size / OPS / 1e6:.0f} MB"
        yield Row("stream", case, detail, "<= 1.003", ratio <= 1.003, ratio)
    setup.destroy()


def _host(name: str, build: Build) -> Iterator[Row]:
    python, compiled = Traced(native=Native.OFF), Traced(native=Native.ON)
    setup = build("layer_first", LAYERS, ROW * FEW)
    compiled.attachment.detach()
    python.attachment.detach()
    ops = _Ops(setup, FEW, ROW)
    value = torch.zeros(1, device=DEVICE)
    size = sum(t[0].nbytes for t in setup.devices) * setup.rows * FEW
    for kind in ("backup", "load"):
        add: list[float] = []
        own: list[float] = []

        def measure(kind: str = kind, add: list[float] = add, own: list[float] = own) -> float:
            add.append(_add(value))
            spent, ours = _in_a_row(ops, kind, compiled.overhead_s)
            own.append(ours)
            return spent

        here, there, bare = _compare((compiled, python, None), measure, ROUNDS[kind])
        cold, slow = _compare((compiled, None), lambda kind=kind: _alone(ops, kind, 9), 3)  # type: ignore[misc]
        once, added = statistics.median(add), _Added.of(here, bare)
        detail = (
            f"{added.over(once)} on {statistics.median(bare):.0f} us in a row, of which "
            f"{statistics.median([us for us in own if us] or [0.0]):.1f} us in the helper; "
            f"+{_Added.of(cold, slow).us:.1f} us on {statistics.median(slow):.0f} us one by one; "
            f"without the helper {_Added.of(there, bare).over(once)}; add_ takes {once:.1f} us"
        )
        case = f"{name}, {kind} of {size / 1e6:.0f} MB, {LAYERS} layers"
        yield Row("host", case, detail, "<= 3 add_", added.us <= 3 * once, added.us / once)
    setup.destroy()


def _add(value: torch.Tensor) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(500):
        value.add_(1)
    spent = (time.perf_counter() - began) / 500 * 1e6
    torch.cuda.synchronize()
    return spent
