"""Digests beside SGLang's copies are those of the digester, at full speed and sparingly."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LAYERS, PAGES, TILE = 7, 600, 8_448


@pytest.mark.parametrize("name", ["every", "sparing"])
def test_launches_of_whole_pages_digest_what_one_by_one_does(name: str) -> None:
    """The first of 64 indices names a page: in any order and number, the digests are those of single pages."""
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
    pages = torch.randperm(PAGES, device="cuda")
    ids = (pages.view(-1, 1) * 64 + torch.arange(64, device="cuda")).reshape(-1)
    stream = torch.cuda.current_stream().cuda_stream
    whole = digester.whole_launch(view)
    launch = getattr(whole, name)
    for count in (9, 1, PAGES):
        want, got = (torch.zeros(LAYERS, count, dtype=torch.int64, device="cuda") for _ in range(2))
        digester.digest(view, range(LAYERS), pages[:count], out=want)
        launch(stream, count, whole.bases, ids.data_ptr(), 64, 64, count, got.data_ptr(), count)
        torch.cuda.synchronize()
        assert got.equal(want)
        assert want.unique().numel() == want.numel()
