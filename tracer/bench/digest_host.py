"""The host's time to enqueue digests, over one ``tensor.add_``."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from hicache_dbg.tracer.bench.memory import one_piece, random_bytes
from hicache_dbg.tracer.bench.table import Row, host_us, median
from hicache_dbg.tracer.digest.ring import ViolationRing
from hicache_dbg.tracer.digest.select import DeviceDigester

__all__ = ["host_rows"]


def host_rows(digester: DeviceDigester) -> Iterator[Row]:
    """What an operation of four pages and 61 layers costs the host more with digests than without."""
    from hicache_dbg.tracer.digest.side import SideStream

    view = one_piece(random_bytes((61, 64 * 16384), "cuda"), 16384)
    ids, side, ring = torch.arange(4, device="cuda"), SideStream(), ViolationRing("cuda")
    ledger = torch.empty(61, 4, dtype=torch.int64, pin_memory=True)
    digests = ledger.cuda()
    stream, value = torch.cuda.current_stream().cuda_stream, torch.zeros(1, device="cuda")
    digester.prepare(view)

    def backup() -> None:
        side.follow(stream)
        digester.digest(view, range(61), ids, out=digests, stream=side.handle)
        side.hold(stream)
        side.copy(ledger, digests)

    def load(*borders: int) -> None:
        side.copy(digests, ledger)
        for low, high in pairwise(borders):
            side.follow(stream)
            digester.compare(
                *(view, range(low, high), ids),
                expected=digests[low:high],
                ring=ring,
                tag=1,
                stream=side.handle,
            )
        side.hold(stream)

    cases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("backup", backup),
        ("load", lambda: load(0, 61)),
        ("load in 2 groups", lambda: load(0, 50, 61)),
    )
    for name, enqueue in cases:
        ratios, ours = [], []
        for _ in range(15):
            ours.append(host_us(enqueue))
            ratios.append(ours[-1] / host_us(lambda: value.add_(1)))
        yield Row("host over tensor.add_", name, median(ratios), f"{median(ours)} us", "<= 3")
