"""The reader of device tensors on the bus thread."""

import threading

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _given(device: str) -> list[torch.Tensor]:
    return [
        torch.arange(5, device=device),
        torch.arange(40_000, device=device) * 3,  # more than there is room for at first
        torch.arange(12, dtype=torch.int32, device=device),
        torch.arange(30, device=device).view(5, 6)[:, ::2],
        torch.empty(0, dtype=torch.int64, device=device),
        torch.arange(7),
    ]


def test_words_come_as_they_are_in_any_form_from_any_thread() -> None:
    """Each tensor's numbers come back flat, and stay valid when more is read."""
    from hicache_dbg.tracer.attach.sglang.gpu import Lane

    lane = Lane("cuda")
    given = _given("cuda")
    torch.cuda.synchronize()
    read = [list(lane.read(None, *given))]
    other = threading.Thread(target=lambda: read.append(list(lane.read(None, *reversed(given)))))
    other.start()
    other.join()
    here = [tensor.cpu().reshape(-1).long() for tensor in given]
    for got, want in zip(read, (here, here[::-1]), strict=True):
        assert got[0].numel() == 0  # of no slot
        assert all(a.equal(b) for a, b in zip(got[1:], want, strict=True))
