"""The tracer on an engine whose device pools are on a GPU: same outcomes, same findings."""

from typing import Any

import numpy as np
import pytest
import torch

from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c128
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import IoBackend, Layout, PoolGeometry
from hicache_dbg.pools.host import IndexKHostPool, Mirror, host_geometry_like, host_pool_for
from hicache_dbg.pools.indices import Indices
from hicache_dbg.pools.kinds import index_k, mha, mla
from hicache_dbg.pools.transfer import CopyOp, PoolCopy, TransferEngine
from hicache_dbg.tracer.digest.tiles import TileDigester
from hicache_dbg.tracer.events import Copied, FaultClass, Finding
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Checksum, Gate, Settings
from hicache_dbg.tracer.view import View

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

KINDS = {
    "mla": mla(3, 64),
    "index_k_bf16": index_k(3, 64, "bf16"),
    "index_k_fp8": index_k(3, 64, "fp8"),
    "mha": mha(3, 16, heads=2, head_dim=64, v_head_dim=32),
    "c4": deepseek_v4_c4(3),
    "c128": deepseek_v4_c128(3),
}
WAYS = [
    (Layout.LAYER_FIRST, IoBackend.KERNEL),
    (Layout.LAYER_FIRST, IoBackend.DIRECT),
    (Layout.PAGE_FIRST, IoBackend.KERNEL),
    (Layout.PAGE_FIRST_DIRECT, IoBackend.DIRECT),
    (Layout.PAGE_HEAD, IoBackend.KERNEL),
]
CASES = [
    (kind, layout, backend)
    for kind in KINDS
    for layout, backend in WAYS
    if layout is not Layout.PAGE_HEAD or kind == "mha"
]
HOST, SOURCE, TARGET = [5, 0, 7], [1, 4, 2], [0, 3, 5]


def mirror_on_cuda(
    geometry: PoolGeometry, layout: Layout, host: PoolGeometry | None = None
) -> Mirror:
    """A mirror of 6 device and 8 pinned host pages, the device's bytes random."""
    pool = DevicePool(geometry, 6, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(3)
    for buffer in pool.buffers.values():
        for tensor in buffer.tensors:
            flat = tensor.view(torch.uint8)
            flat.copy_(
                torch.randint(
                    0, 256, flat.shape, dtype=torch.uint8, device="cuda", generator=generator
                )
            )
    torch.cuda.synchronize()
    if host is not None:
        return Mirror(pool, IndexKHostPool(host, 8, layout, pin=True))
    return Mirror(pool, host_pool_for(host_geometry_like(pool), 8, layout, pin=True))


def operation(mirror: Mirror, kind: str, device: list[int], backend: IoBackend) -> CopyOp:
    """Whole pages of one mirror between the device pages and the host pages of these tests."""
    copy = PoolCopy(
        mirror=mirror,
        host=Indices.pages(HOST, mirror.host.geometry),
        device=Indices.pages(device, mirror.device.geometry),
        token_granular=False,
        io_backend=backend,
        layers=tuple(range(mirror.device.geometry.layers)),
    )
    return CopyOp(1, kind, (copy,), np.ones(len(HOST), np.uint32))  # type: ignore[arg-type]


def round_trip(
    mirror: Mirror, backend: IoBackend, level: Checksum, *, flip: bool = False
) -> tuple[list[Copied], list[Finding]]:
    """Back up three pages and load them elsewhere; with ``flip`` a host bit changes in between."""
    sink, engine = MemorySink(), TransferEngine()
    with Runtime.start(Settings(gate=Gate.ON, checksum=level), sinks=[sink]) as runtime:
        engine.backup(operation(mirror, "backup", SOURCE, backend))
        if flip:
            # layer 0, page 7 of a layer_first pool; indexing, unlike flatten, makes no copy
            page = next(iter(mirror.host.buffers.values())).tensors[0][0, 7]
            page.view(torch.uint8).view(-1)[9] ^= 1
        engine.load(operation(mirror, "load", TARGET, backend), lambda _: None)
        assert runtime.flush()
    mirror.host.close()
    return sink.of(Copied), sink.of(Finding)


@pytest.mark.parametrize("level", [Checksum.LOADS, Checksum.ENDS, Checksum.THREE])
@pytest.mark.parametrize(("kind", "layout", "backend"), CASES)
def test_clean_copies_verify_on_the_device(
    kind: str, layout: Layout, backend: IoBackend, level: Checksum
) -> None:
    """Every tile is verified through the device's own digest, the bytes moved, nothing is found."""
    mirror = mirror_on_cuda(KINDS[kind], layout)
    (backup, load), findings = round_trip(mirror, backend, level)
    tiles = len(HOST) * 3 * len(KINDS[kind].components)
    assert findings == []
    assert (backup.witnessed if level is Checksum.LOADS else backup.verified) == tiles
    assert load.verified == tiles
    for buffer in mirror.device.buffers.values():
        for tensor in buffer.tensors:
            pages = tensor.view(torch.uint8)
            assert all(pages[a].equal(pages[b]) for a, b in zip(SOURCE, TARGET, strict=True))


@pytest.mark.parametrize("kind", ["mla", "c4", "mha"])
def test_a_flipped_bit_is_found_on_the_device(kind: str) -> None:
    """One bit that changes on the host is one mismatched tile, named bit_flip, in the right page."""
    mirror = mirror_on_cuda(KINDS[kind], Layout.LAYER_FIRST)
    (_, load), (finding,) = round_trip(mirror, IoBackend.KERNEL, Checksum.LOADS, flip=True)
    assert load.mismatched == 1
    assert (finding.cls, finding.pages, finding.layer) == (FaultClass.BIT_FLIP, (7,), 0)


@pytest.mark.parametrize("layers", [3, 9])
def test_the_device_compares_by_itself(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    """Loads of whole pages are verified although no digest of the device is ever asked for by call."""
    asked: list[str] = []
    digest = TileDigester.digest

    def remember(self: TileDigester, view: View, *args: Any) -> Any:
        asked.append(view.device)
        return digest(self, view, *args)

    monkeypatch.setattr(TileDigester, "digest", remember)
    mirror = mirror_on_cuda(mla(layers, 64), Layout.PAGE_FIRST)
    (backup, load), findings = round_trip(mirror, IoBackend.KERNEL, Checksum.LOADS)
    assert (backup.witnessed, load.verified, findings) == (3 * layers, 3 * layers, [])
    assert asked == []


def test_pages_that_are_written_at_once_after_their_operation() -> None:
    """Whoever is told that an operation is over may overwrite its pages: no digest comes too late."""
    mirror, engine, sink = (
        mirror_on_cuda(mla(9, 64), Layout.PAGE_FIRST),
        TransferEngine(),
        MemorySink(),
    )
    buffers = [tensor for buffer in mirror.device.buffers.values() for tensor in buffer.tensors]
    with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
        for round_ in range(20):
            for tensor in buffers:
                tensor.fill_(round_)
            torch.cuda.synchronize()
            engine.backup(operation(mirror, "backup", SOURCE, IoBackend.KERNEL))
            for tensor in buffers:
                tensor.fill_(77)
            torch.cuda.synchronize()
            engine.load(operation(mirror, "load", TARGET, IoBackend.KERNEL), lambda _: None)
            for tensor in buffers:
                tensor.fill_(99)
        assert runtime.flush()
    mirror.host.close()
    assert sink.of(Finding) == []
    assert [event.verified for event in sink.of(Copied)] == [0, 27] * 20


def test_the_story_on_the_device() -> None:
    """A bf16 device under a pinned host sized for fp8: row_width at registration and from the bytes."""
    mirror = mirror_on_cuda(KINDS["index_k_bf16"], Layout.PAGE_FIRST, KINDS["index_k_fp8"])
    (_, load), findings = round_trip(mirror, IoBackend.KERNEL, Checksum.LOADS)
    assert load.mismatched == 9
    assert {finding.cls for finding in findings} == {FaultClass.ROW_WIDTH}
    assert {finding.check for finding in findings} == {"registration", "bytes"}
