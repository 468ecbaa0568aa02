"""Cost of recording tiles on a handover over NIXL between two processes on the CPU.

    python benchmarks/handover.py [--pairs 15] [--shapes 1x8,8x6,64x1] [--consecutive] [--nixl-thread] [--json]

A pass hands over a burst of requests (``8x6``: six requests of eight pages each). It is timed at decode,
from asking for them until the last may be read. Passes run in pairs in alternating order, one with the
tracer attached at both ends and one without. The result is the median of the pairs' ratios.

Every tile is digested at both ends, and the filled part of each last page, which is half full. Requests
share no pages. Decode's pages are shuffled, or ``--consecutive``. Decode digests after the burst, outside
of the timed part: ``later`` is how long after it the last digest is taken.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from unittest import mock

import numpy as np
import torch

from hicache_dbg.pools.allocator import PageAllocator
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.channel import SILENCE_S
from hicache_dbg.pools.handover.decode import DecodeEnd
from hicache_dbg.pools.handover.link import Link, nixl_wire
from hicache_dbg.pools.handover.planes import Descriptors
from hicache_dbg.pools.handover.prefill import PrefillEnd
from hicache_dbg.pools.kinds import mla
from hicache_dbg.tracer.attach.hicache_handover import HandoverAttachment, handover_of
from hicache_dbg.tracer.events import Copied
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

LAYERS, PAGE_TOKENS = 61, 64  # a page of DeepSeek-V3's latent: 61 x 73,728 B
LEFT = PAGE_TOKENS // 2  # of the last page of each request
MOST_COST = 1.05
WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the bytes go.

    Attributes:
        devices: of prefill's and decode's pools.
        thread: NIXL runs its progress thread at both ends; None leaves it to the engine.
        by_tile: rows that are adjacent at both ends are not merged.
    """

    devices: tuple[str, str] = ("cpu", "cpu")
    thread: bool | None = None
    by_tile: bool = False


def link_of(
    role: str, group: PoolGroup, connection: Connection, way: Way, silence_s: float = SILENCE_S
) -> Link:
    """Return one end's link, not agreed yet."""
    if way.by_tile and role == "prefill":  # which writes; it has a process of its own
        mock.patch("hicache_dbg.pools.handover.wire.merged", _as_they_are).start()
    wire = nixl_wire(group, connection, thread=way.thread)
    return Link(role, group, connection, silence_s=silence_s, wire=wire)


def _as_they_are(
    local: Descriptors, remote: Descriptors, **_: object
) -> tuple[Descriptors, Descriptors]:
    return local, remote


def group_of(pages: int, *, filled: bool, device: str = "cpu") -> PoolGroup:
    """Build a group of device pages, filled with random bytes for prefill."""
    group = PoolGroup.build(
        [mla(LAYERS, PAGE_TOKENS, torch.bfloat16)],
        device_pages=pages,
        host_pages=1,
        layout=Layout.PAGE_FIRST,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(0)
    for tensor in group.mirrors[0].device.buffers["latent"].tensors:
        flat = tensor.view(torch.uint8).view(-1)
        if filled:
            flat.random_(0, 256, generator=generator)
    if device != "cpu":
        torch.cuda.synchronize(device)  # a write reads what is there when posted
    return group


@contextmanager
def tracer() -> Iterator[tuple[HandoverAttachment, MemorySink]]:
    """Start a tracer, and return its attachment to the handover and what it records."""
    sink = MemorySink()
    settings = Settings(gate=Gate.ON, checksum=Checksum.LOADS)
    with Runtime.start(settings, sinks=[sink]) as runtime:
        yield handover_of(runtime), sink


def prefill(jobs: Connection, channel: Connection, pages: int, requests: int, way: Way) -> None:
    """Hand over the requests of each pass, traced or not."""
    torch.set_num_threads(1)
    group = group_of(pages * requests, filled=True, device=way.devices[0])
    link = link_of("prefill", group, channel, way)
    link.agree()
    with PrefillEnd(link) as end, tracer() as (attachment, sink):
        while (job := jobs.recv()) is not None:
            number, traced = job
            (attachment.attach if traced else attachment.detach)()
            jobs.send("ready")
            jobs.recv()
            sent = [
                end.send(f"{number}.{request}", own, pages * PAGE_TOKENS - LEFT)
                for request, own in enumerate(np.split(np.arange(pages * requests), requests))
            ]
            for one in sent:
                end.wait(one, WAIT_S)
            sink.events.clear()


def one_pass(  # noqa: PLR0917 - the parameters of a pass
    jobs: Connection, end: DecodeEnd, number: int, traced: bool, order: np.ndarray, requests: int
) -> float:
    """Return the seconds from asking for the first request until the last may be read."""
    jobs.send((number, traced))
    jobs.recv()
    began = time.perf_counter()
    jobs.send("go")
    expected = [
        end.expect(f"{number}.{request}", own, len(own) * PAGE_TOKENS - LEFT)
        for request, own in enumerate(np.split(order, requests))
    ]
    for one in expected:
        end.wait(one, WAIT_S)
    return time.perf_counter() - began


def measure(
    pairs: int,
    pages: int,
    requests: int,
    way: Way = Way(),
    *,
    consecutive: bool = False,
) -> dict[str, float]:
    """Return ratios and rates over ``pairs`` pairs, after a warm-up pair."""
    torch.set_num_threads(1)
    context = get_context("spawn")
    jobs, theirs = context.Pipe()
    ours, channel = context.Pipe()
    process = context.Process(
        target=prefill, args=(theirs, channel, pages, requests, way), daemon=True
    )
    process.start()
    theirs.close()
    channel.close()
    group = group_of(pages * requests, filled=False, device=way.devices[1])
    link = link_of("decode", group, ours, way, WAIT_S)
    link.agree()
    ratios, plain, recorded, later, seen = [], [], [], [], 0
    allocator = PageAllocator(pages * requests, "decode")
    with (
        DecodeEnd(link, lambda _pages: None, generation=allocator.generation) as end,
        tracer() as (attachment, sink),
    ):
        for pair in range(pairs + 1):
            took: dict[bool, float] = {}
            order = np.arange(pages * requests)
            if not consecutive:
                order = np.random.default_rng(pair).permutation(order)
            for traced in (pair % 2 == 0, pair % 2 == 1):
                (attachment.attach if traced else attachment.detach)()
                took[traced] = one_pass(jobs, end, 2 * pair + traced, traced, order, requests)
                ended = time.perf_counter()
                attachment.settle()
                if traced and pair:
                    later.append(time.perf_counter() - ended)
            if pair:  # the first one connects
                ratios.append(took[True] / took[False])
                plain.append(took[False])
                recorded.append(took[True])
            seen += sum(copy.witnessed for copy in sink.of(Copied))
            sink.events.clear()
        jobs.send(None)
        process.join(WAIT_S)
    moved = requests * pages * LAYERS * group.mirrors[0].device.geometry.page_bytes()
    return {
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "recorded_ms": statistics.median(recorded) * 1e3,
        "later_ms": statistics.median(later) * 1e3,
        "gb_s": moved / statistics.median(plain) / 1e9,
        "tiles_digested_at_decode": seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="NIXL transfer with tiles recorded / without.")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--shapes", default="1x8,8x6,64x1", help="pages x requests of a pass")
    parser.add_argument("--consecutive", action="store_true")
    parser.add_argument(
        "--nixl-thread", action="store_true", help="run NIXL's progress thread at both ends"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for shape in asked.shapes.split(","):
        pages, requests = map(int, shape.split("x"))
        way = Way(thread=asked.nixl_thread or None)
        found = measure(asked.pairs, pages, requests, way, consecutive=asked.consecutive)
        if asked.json:
            print(json.dumps({"pages": pages, "requests": requests, **found}))
        else:
            print(
                f"{requests} requests of {pages} pages with tiles recorded / without: "
                f"{found['ratio']:.3f} (goal <= {MOST_COST}; pairs {found['lowest']:.2f} to "
                f"{found['highest']:.2f}), {found['gb_s']:.2f} GB/s without, digested "
                f"{found['later_ms']:.1f} ms later"
            )


if __name__ == "__main__":
    main()
