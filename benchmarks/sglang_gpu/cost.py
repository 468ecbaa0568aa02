# mypy: disable-error-code="import-not-found"
"""What tracing costs: streams of operations, and the host's time for one; attached over detached.

An operation is over when SGLang's own event of its end has come, which is behind the digests while we
are attached.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from builders import index_k, mha, mla, v4
from driving import Mover, indices
from setups import DEVICE, Build, Setup
from tracing import Row, Traced

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
#: Rows of the host are short, and its state changes: more pairs than of the streams.
HOST_PAIRS = 25
#: Operations ahead of those that are timed: the first ones behind a switch take longer, once.
UNTIMED = 8
#: Operations in a row: a load launches a kernel a layer, and the driver queues 1,024 without waiting.
TIMED = {"backup": ROW - UNTIMED, "load": 12}
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


def _in_a_row(ops: _Ops, kind: str) -> float:
    """Return the host's microseconds per operation, of many in a row that only the host limits."""
    for number in range(UNTIMED):
        ops.run(kind, number)
    torch.cuda.synchronize()
    count = TIMED[kind]
    began = time.perf_counter()
    ends = [ops.run(kind, UNTIMED + number) for number in range(count)]
    spent = time.perf_counter() - began
    for end in ends:
        end.synchronize()
    return spent / count * 1e6


def _alone(traced: Traced, ops: _Ops, kind: str, count: int) -> float:
    """Return the same for operations a millisecond apart, whose code and data have left the caches."""
    spent: list[float] = []
    for number in range(count):
        traced.take()
        time.sleep(0.001)
        began = time.perf_counter()
        ops.run(kind, number)
        spent.append(time.perf_counter() - began)
    traced.take()
    return statistics.median(spent) * 1e6


def _on_our_threads(traced: Traced, ops: _Ops, kind: str, count: int) -> float:
    """Return the CPU microseconds per operation on all other threads, until it is judged."""
    traced.take()
    everybody, here = time.process_time(), time.thread_time()
    for number in range(count):
        ops.run(kind, number)
    traced.take()
    spent = time.process_time() - everybody - (time.thread_time() - here)
    return spent / count * 1e6


def _compare(
    traced: Traced, measure: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Measure attached and detached in pairs, in alternating order; return both lists."""
    with_us: list[float] = []
    without: list[float] = []
    for pair in range(pairs + 2):
        for attached in ((True, False), (False, True))[pair % 2]:
            (traced.attachment.attach if attached else traced.attachment.detach)()
            value = measure()
            if attached:
                traced.take()  # judged before anything else is measured
            if pair > 1:
                (with_us if attached else without).append(value)
    traced.attachment.attach()
    return with_us, without


def _streams(stream: Stream) -> Iterator[Row]:
    traced = Traced()
    pages = stream.pages
    setup = stream.build(stream.layout, stream.layers, SETS * pages)
    ops = _Ops(setup, pages, SETS)
    for number in range(SETS):
        ops.run("backup", number)
    size = sum(t[0].nbytes for t in setup.devices) * setup.rows * pages * OPS
    for kind in ("backup", "load"):
        ours, bare = _compare(traced, lambda kind=kind: _wall(ops, kind, OPS), PAIRS)  # type: ignore[misc]
        ratios = [a / b for a, b in zip(ours, bare, strict=True)]
        ratio = statistics.median(ratios)
        speed = size / statistics.median(ours) / 1e9
        detail = f"{ratio:.4f} ({min(ratios):.4f}..{max(ratios):.4f}), {speed:.1f} GB/s"
        case = f"{stream.name} {stream.layout}, {kind}s, {OPS} of {size / OPS / 1e6:.0f} MB"
        yield Row("stream", case, detail, "<= 1.003", ratio <= 1.003, ratio)
    traced.attachment.detach()
    setup.destroy()


def _host(name: str, build: Build) -> Iterator[Row]:
    traced = Traced()
    setup = build("layer_first", LAYERS, ROW * FEW)
    ops = _Ops(setup, FEW, ROW)
    for number in range(ROW):
        ops.run("backup", number)
    value = torch.zeros(1, device=DEVICE)
    size = sum(t[0].nbytes for t in setup.devices) * setup.rows * FEW
    for kind in ("backup", "load"):
        add: list[float] = []

        def measure(kind: str = kind, add: list[float] = add) -> float:
            add.append(_add(value))
            return _in_a_row(ops, kind)

        ours, bare = _compare(traced, measure, HOST_PAIRS)
        once = statistics.median(add)
        added = statistics.median(a - b for a, b in zip(ours, bare, strict=True))
        cold, quiet = _compare(traced, lambda kind=kind: _alone(traced, ops, kind, 9), 3)  # type: ignore[misc]
        apart = statistics.median(a - b for a, b in zip(cold, quiet, strict=True))
        beside = statistics.median(_on_our_threads(traced, ops, kind, 16) for _ in range(3))
        detail = (
            f"{added / once:.2f} add_ of {once:.1f} us: +{added:.1f} us on "
            f"{statistics.median(bare):.0f} us in a row, +{apart:.1f} us on "
            f"{statistics.median(quiet):.0f} us one by one; {beside:.0f} us on threads of ours"
        )
        case = f"{name}, {kind} of {size / 1e6:.0f} MB, {LAYERS} layers"
        yield Row("host", case, detail, "<= 3 add_", added <= 3 * once, added / once)
    traced.attachment.detach()
    setup.destroy()


def _add(value: torch.Tensor) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(500):
        value.add_(1)
    spent = (time.perf_counter() - began) / 500 * 1e6
    torch.cuda.synchronize()
    return spent
