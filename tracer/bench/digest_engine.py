"""Measure our own engine on a CUDA device, traced and not, until operations are verified."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout
from hicache_dbg.pools.host import Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.attach.hicache_views import mirror_views
from hicache_dbg.tracer.bench.overhead import paired, repeat
from hicache_dbg.tracer.bench.table import Row, host_us, median, seconds
from hicache_dbg.tracer.digest.select import DeviceDigester
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Copied, Op
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.mirror import Copy, MirrorViews
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.session import Session
from hicache_dbg.tracer.settings import Checksum, Gate, Settings

__all__ = ["engine_rows", "probe_rows"]

_LAYERS, _PAGES, _MOVED = 61, 128, 64
#: Operations one behind the other.
_ROW = 6

Call = Callable[[TransferEngine], object]


def engine_rows(_: DeviceDigester, pairs: int = 15) -> Iterator[Row]:
    """Measure operations of 64 pages of 73,728 bytes in 61 layers: 288 MB, singly and in rows."""
    pool = DevicePool(mla(_LAYERS, 64), _PAGES, "cuda")
    host = host_pool_for(host_geometry_like(pool), _PAGES, Layout.PAGE_FIRST, pin=True)
    mirror, engine, sink = Mirror(pool, host), TransferEngine(), MemorySink()
    bare = {kind: TransferEngine.__dict__[kind] for kind in ("backup", "load")}
    calls: dict[str, tuple[Call, Call]] = {
        "backup": (
            lambda engine: bare["backup"](engine, _operation(mirror, "backup")),
            lambda engine: engine.backup(_operation(mirror, "backup")),
        ),
        "load": (
            lambda engine: bare["load"](engine, _operation(mirror, "load"), _nothing),
            lambda engine: engine.load(_operation(mirror, "load"), _nothing),
        ),
    }
    for level, limits in ((Checksum.LOADS, ("<= 1.015", "<= 1.015")), (Checksum.OFF, ("", ""))):
        with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[sink]) as runtime:
            for (name, (without, traced)), limit in zip(calls.items(), limits, strict=True):
                for _warm in range(3):
                    traced(engine)
                base, other = (
                    partial(_timed, runtime, call, without, engine) for call in (without, traced)
                )
                yield _compared(f"{name}, checksum={level}", base, other, pairs, limit)
                base, other = (
                    partial(_in_row, runtime, call, engine) for call in (without, traced)
                )
                yield _compared(f"{name}, checksum={level}, row of {_ROW}", base, other, pairs)
            runtime.flush()
    copies = sink.of(Copied)
    verified, mismatched = (sum(getattr(c, n) for c in copies) for n in ("verified", "mismatched"))
    detail = f"{len(copies)} operations: {verified} tiles verified, {mismatched} mismatched"
    yield Row("engine traced over bare", "what was found", None, detail)
    torch.cuda.synchronize()
    host.close()


def _compared(
    case: str, base: Callable[[], float], other: Callable[[], float], pairs: int, limit: str = ""
) -> Row:
    ratios = paired(base, other, pairs)
    spread = f"{1e3 * base():.2f} ms, min {min(ratios):.4f} max {max(ratios):.4f}"
    return Row("engine traced over bare", case, median(ratios), spread, limit)


def probe_rows(_: DeviceDigester) -> Iterator[Row]:
    """Measure the host time to record an operation of 4 pages and 61 layers, over ``tensor.add_``."""
    pool = DevicePool(mla(_LAYERS, 64), 8, "cuda")
    host = host_pool_for(host_geometry_like(pool), 8, Layout.PAGE_FIRST, pin=True)
    views = mirror_views(Mirror(pool, host), None)
    value, stream = torch.zeros(1, device="cuda"), torch.cuda.Stream().cuda_stream
    for level, goal in ((Checksum.LOADS, "<= 3"), (Checksum.OFF, "<= 0.3")):
        session = Session(
            Settings(gate=Gate.ON, checksum=level),
            [MemorySink()],
            TileDigester(),
            system="bench",
            version="",
        )
        probe = session.probe
        probe.watching = probe.describes_later = True
        for op in (Op.BACKUP, Op.LOAD):
            copy, ratios, times = _described(views, op), [], []
            queued = partial(probe.queued, stream, 3)
            for _repeat in range(15):
                once = partial(probe.observe, lambda: [copy], queued, on_device=True)  # noqa: B023
                times.append(host_us(once, 32))
                assert session.bus.flush(60)
                ratios.append(times[-1] / host_us(lambda: value.add_(1), 32))
            case = f"{op}, probe, checksum={level}"
            yield Row("host over tensor.add_", case, median(ratios), f"{median(times)} us", goal)
        session.close()
    host.close()


def _described(views: MirrorViews, op: Op) -> Copy:
    pages, layers = np.arange(4), tuple(range(_LAYERS))
    return Copy(
        mirror=views,
        op=op,
        host_pages=pages,
        device_pages=pages,
        generations=np.ones(4, np.int64),
        h=4 * views.slot_page,
        d=4 * views.slot_page,
        token_granular=False,
        io_backend="kernel",
        layers=layers,
        model_layers=layers,
    )


def _operation(mirror: Mirror, kind: str) -> CopyOp:
    pages = np.arange(_MOVED)
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(pages, mirror.host.geometry),
        device=Indices.pages(pages, mirror.device.geometry),
        token_granular=False,
        io_backend=IoBackend.KERNEL,
        layers=tuple(range(_LAYERS)),
    )
    return CopyOp(1, kind, (copy,), np.ones(_MOVED, np.uint32))  # type: ignore[arg-type]


def _timed(runtime: Runtime, call: Call, bare: Call, engine: TransferEngine) -> float:
    """Return the seconds of one operation, right after an untraced one and with the bus idle.

    This resembles a worker with a steady queue: after a pause, every core is slow for a while.
    """
    assert runtime.flush(60)
    bare(engine)
    torch.cuda.synchronize()
    return seconds(lambda: call(engine))


def _in_row(runtime: Runtime, call: Call, engine: TransferEngine) -> float:
    """Return the seconds of an operation in a row, where the bus judges one while the next runs."""
    assert runtime.flush(60)
    torch.cuda.synchronize()
    return seconds(lambda: repeat(lambda: call(engine), _ROW)) / _ROW


def _nothing(_: int) -> None:
    return None
