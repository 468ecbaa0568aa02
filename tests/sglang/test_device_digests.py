"""Digests beside SGLang's copies are those of the digester, by one launch or by several."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LAYERS, PAGES, TILE = 7, 24, 73_728


@pytest.mark.parametrize("ranges", [(), (range(7),), (range(3), range(3, 4), range(4, 7))])
def test_launches_of_whole_pages_digest_what_one_by_one_does(ranges: tuple[range, ...]) -> None:
    """The first of 64 indices names a page, in any order: the same words, at once or range by range."""
    from hicache_dbg.tracer.digest.gpu import GpuDigester
    from hicache_dbg.tracer.view import Run, View

    layers = torch.randint(0, 256, (LAYERS, PAGES, TILE), dtype=torch.uint8, device="cuda")
    view = View(
        pool="kv",
        component="latent",
        tier="device",
        layout="layer_first",
        dtype="uint8",
        itemsize=1,
        bases=tuple(layer.data_ptr() for layer in layers),
        page_stride=TILE,
        page_span=TILE,
        pages=PAGES,
        slots_per_page=64,
        runs=(Run(0, TILE // 64, TILE // 64),),
        device="cuda:0",
        owner=layers,
    )
    digester = GpuDigester("cuda")
    pages = torch.randperm(PAGES, device="cuda")[:9]
    ids = (pages.view(-1, 1) * 64 + torch.arange(64, device="cuda")).reshape(-1)
    stream = torch.cuda.current_stream().cuda_stream
    want, got = (torch.zeros(LAYERS, 9, dtype=torch.int64, device="cuda") for _ in range(2))
    digester.digest(view, range(LAYERS), pages, out=want)
    launch = digester.whole_launch(view)
    for some in ranges:
        launch.some(some, stream, ids.data_ptr(), 64, 64, 9, got.data_ptr())
    if not ranges:
        first, out = ids.data_ptr(), got.data_ptr()
        launch.every(stream, 4, launch.bases, first + 8, 64, 64, 4, out, 4)  # other pages, fewer
        launch.every(stream, 9, launch.bases, first, 64, 64, 9, out, 9)
    torch.cuda.synchronize()
    assert got.equal(want)
    assert want.unique().numel() == want.numel()
