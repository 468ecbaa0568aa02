"""The side stream of each of SGLang's streams, on a real device."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_a_stream_is_chosen_once_when_nothing_runs() -> None:
    """It is chosen once the copy stream is idle, is not one of SGLang's, and stays as long as both live."""
    from hicache_dbg.tracer.attach.sglang.gpu import Lane

    sides = Lane("cuda").sides
    copies = torch.cuda.Stream()
    with torch.cuda.stream(copies):
        torch.cuda._sleep(400_000_000)  # 0.2 s
    before = sides[copies.cuda_stream]
    sides.settle(copies.cuda_stream)
    assert copies.cuda_stream not in sides
    copies.synchronize()
    sides.settle(copies.cuda_stream)
    chosen = dict(sides)
    sides.settle(copies.cuda_stream)
    assert dict(sides) == chosen
    assert {before, chosen[copies.cuda_stream]}.isdisjoint({0, copies.cuda_stream})
    assert sides.launches_ms(copies.cuda_stream, chosen[copies.cuda_stream]) > 0
