# mypy: disable-error-code="import-not-found"
"""What tracing costs: streams of operations, and the host's time for one; attached over detached.

An operation is over when SGLang's own event of its end has come, which is behind the digests while we
are attached.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from builders import index_k, mha, mla, v4
from driving import Mover, indices
from segments import Added, Parts, Stamps, alternate
from setups import DEVICE, Build, Setup
from tracing import Row, Traced

from hicache_dbg.tracer.settings import Native

__all__ = ["cost", "host"]

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
#: Rounds of the host's rows: many and short, because the host's state changes. Each has operations in a row,
#: behind some that are not timed: the first ones behind a switch take longer, attached or not. A load launches a
#: kernel a layer, and the driver queues 1,024 without waiting.
ROUNDS, UNTIMED, TIMED = 250, 4, 5
#: The same one by one.
ROUNDS_ALONE, ALONE = 30, 4
#: How far apart single operations are, in seconds: the bus judges each before the next one.
APART_S = 0.03
#: Operations digested beside the copy, and on its own stream.
HOST: tuple[tuple[str, Build], ...] = (("mla", mla), ("index_k", index_k))


def cost() -> Iterator[Row]:
    """Yield the ratios of streams, then the host's rows."""
    for stream in STREAMS:
        yield from _streams(stream)
    yield from host()


def host() -> Iterator[Row]:
    """Yield what an operation takes of the host's time, over ``add_``."""
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


def _in_a_row(ops: _Ops, kind: str, stamps: Stamps) -> list[Parts]:
    """Time operations in a row that only the host limits."""
    for number in range(UNTIMED):
        ops.run(kind, number)
    torch.cuda.synchronize()
    runs = [stamps.run(partial(ops.run, kind, UNTIMED + number)) for number in range(TIMED)]
    for _, end in runs:
        end.synchronize()
    return [parts for parts, _ in runs]


def _alone(ops: _Ops, kind: str, stamps: Stamps) -> list[Parts]:
    """Time operations far apart, whose code and data have left the caches."""
    timed = []
    for number in range(ALONE):
        torch.cuda.synchronize()
        time.sleep(APART_S)
        timed.append(stamps.run(partial(ops.run, kind, number))[0])
    return timed


@contextmanager
def _attached(traced: Traced) -> Iterator[None]:
    traced.attachment.attach()
    yield
    traced.take()  # judged before anything else is measured
    traced.attachment.detach()


def _compare(traced: Traced, measure: Callable[[], float]) -> list[list[float]]:
    """Measure attached and detached in pairs of alternating order; return a list of each.

    It is detached before and behind.
    """
    values: list[list[float]] = [[], []]
    modes: list[Callable[[], AbstractContextManager[None]]]
    modes = [partial(_attached, traced), nullcontext]
    for number in range(PAIRS + 2):
        for context, mine in list(zip(modes, values, strict=True))[:: (1, -1)[number % 2]]:
            with context():
                value = measure()
            if number > 1:
                mine.append(value)
    return values


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
        ours, bare = _compare(traced, partial(_wall, ops, kind, OPS))
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
        stamps = Stamps()

        def measure(
            kind: str = kind, stamps: Stamps = stamps, add: list[float] = add
        ) -> list[Parts]:
            add.append(_add(value))
            return _in_a_row(ops, kind, stamps)

        def counted(
            measure: Callable[[], list[Parts]] = measure, own: list[float] = own
        ) -> list[Parts]:
            before = compiled.overhead_s()
            parts = measure()
            own.append((compiled.overhead_s() - before) / (UNTIMED + TIMED) * 1e6)
            return parts

        alone = partial(_alone, ops, kind, stamps)
        on, slower = partial(_attached, compiled), partial(_attached, python)
        with stamps.placed():
            here, there, bare = alternate(
                [(on, counted), (slower, measure), (nullcontext, measure)], ROUNDS
            )
            cold, slow = alternate([(on, alone), (nullcontext, alone)], ROUNDS_ALONE)
        once, added = statistics.median(add), Added.of(here, bare)
        detail = (
            f"{added.over(once)} on {Parts.middle(bare).us:.0f} us in a row, of which "
            f"{statistics.median(own):.1f} us in the helper; "
            f"one by one {Added.of(cold, slow)} on {Parts.middle(slow).us:.0f} us; "
            f"without the helper {Added.of(there, bare).over(once)}; add_ takes {once:.1f} us"
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
