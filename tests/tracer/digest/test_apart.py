"""The dedicated digest stream: ordered with the others by events, and shared by everybody."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_what_is_enqueued_apart_is_in_order_with_other_streams() -> None:
    """It waits for a slow writer on another stream, and a waiter sees its result."""
    from hicache_dbg.tracer.digest.apart import apart_stream
    from hicache_dbg.tracer.digest.mark import Mark

    device = torch.device("cuda", torch.cuda.current_device())
    apart = apart_stream(device)
    if apart is None:
        pytest.skip("this driver or device has no stream apart")
    assert apart_stream(device) == apart
    other, beside = torch.cuda.Stream(), torch.cuda.ExternalStream(apart)
    order, values = Mark(), torch.zeros(1 << 20, dtype=torch.int64, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(20_000_000)
        values.add_(1)
    order.record(other.cuda_stream)
    order.hold(apart)
    with torch.cuda.stream(beside):
        values.mul_(10)
    order.record(apart)
    order.hold(other.cuda_stream)
    with torch.cuda.stream(other):
        values.add_(5)
    torch.cuda.synchronize()
    assert values.unique().tolist() == [15]
