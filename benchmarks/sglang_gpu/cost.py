# mypy: disable-error-code="import-not-found"
"""What it costs: streams of operations and the host's time for one, attached over not, in one run."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from builders import index_k, mha, mla, v4
from driving import Mover, indices
from setups import DEVICE, Build, Setup
from tracing import Row, Traced

__all__ = ["cost"]

LAYERS, OPS, PAIRS = 61, 16, 9


@dataclass(frozen=True)
class Stream:
    """Operations in a row on one pool: about 150 MB each."""

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
FEW = 4
#: Operations whose digests run beside the copy, and in its own stream.
HOST: tuple[tuple[str, Build], ...] = (("mla", mla), ("index_k", index_k))


def cost() -> Iterator[Row]:
    """Ratios of streams, then the host's time over ``add_``."""
    for stream in STREAMS:
        yield from _streams(stream)
    for name, build in HOST:
        yield from _host(name, build)


class _Ops:
    """Operations on disjoint page sets, taken in turn."""

    def __init__(self, setup: Setup, count: int, sets: int) -> None:
        order = torch.randperm(sets * count)
        self._host = [indices(part, setup.page) for part in order.split(count)]
        device = torch.randperm(sets * count).split(count)
        self._device = [indices(part, setup.page).to(DEVICE) for part in device]
        self._mover, self._sets = Mover(setup, "kernel"), sets

    def run(self, kind: str, number: int) -> None:
        """Enqueue operation ``number``."""
        at = number % self._sets
        getattr(self._mover, kind)(self._host[at], self._device[at])


def _wall(ops: _Ops, kind: str, count: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(count):
        ops.run(kind, number)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _in_a_row(ops: _Ops, kind: str, count: int) -> float:
    """Microseconds of the host an operation: many in a row, which wait for nothing but the host."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(count):
        ops.run(kind, number)
    spent = time.perf_counter() - began
    torch.cuda.synchronize()
    return spent / count * 1e6


def _alone(traced: Traced, ops: _Ops, kind: str, count: int) -> float:
    """The same for operations that come one by one: little of what they run is in a cache by then."""
    spent: list[float] = []
    for number in range(count):
        traced.take()
        time.sleep(0.001)
        began = time.perf_counter()
        ops.run(kind, number)
        spent.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(spent) * 1e6


def _compare(
    traced: Traced, measure: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """What ``measure`` says attached and detached, in turn; the order changes with every pair."""
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
    setup = stream.build(stream.layout, stream.layers, 4 * pages)
    ops = _Ops(setup, pages, 4)
    for number in range(4):
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
    setup = build("layer_first", LAYERS, 8 * FEW)
    ops = _Ops(setup, FEW, 8)
    for number in range(8):
        ops.run("backup", number)
    value = torch.zeros(1, device=DEVICE)
    size = sum(t[0].nbytes for t in setup.devices) * setup.rows * FEW
    for kind in ("backup", "load"):
        add: list[float] = []

        def measure(kind: str = kind, add: list[float] = add) -> float:
            add.append(_add(value))
            return _in_a_row(ops, kind, 32)

        ours, bare = _compare(traced, measure, PAIRS)
        once = statistics.median(add)
        added = statistics.median(a - b for a, b in zip(ours, bare, strict=True))
        cold, quiet = _compare(traced, lambda kind=kind: _alone(traced, ops, kind, 9), 3)  # type: ignore[misc]
        apart = statistics.median(a - b for a, b in zip(cold, quiet, strict=True))
        detail = (
            f"{added / once:.2f} add_ of {once:.1f} us: +{added:.1f} us on "
            f"{statistics.median(bare):.0f} us in a row, +{apart:.1f} us on "
            f"{statistics.median(quiet):.0f} us one by one"
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
