"""HiSparse's host pool for MHA: single tokens and pages, with the model's own layer numbers."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from collections import defaultdict
from typing import Any

import pytest
import torch
from released_base import DESCRIBED, HOST_PAGES, LAYERS, Setup, bytes_of, pointers, random_bytes
from released_driving import indices
from released_lane import beside
from released_traced import Start

from hicache_dbg.tracer.events import Copied, Finding, Op, Started
from hicache_dbg.tracer.settings import Checksum

pytestmark = pytest.mark.skipif(not DESCRIBED, reason="the class came later")
PAGE, FIRST = 4, 3  # the stage's first layer


def unpinned(dims: tuple[int, ...], *, dtype: torch.dtype, device: str, **_: Any) -> torch.Tensor:
    """Allocate host memory without registering it with CUDA."""
    return torch.zeros(dims, dtype=dtype, device=device)


@pytest.fixture
def hisparse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build the real class over SGLang's own device pool of a later pipeline stage.

    Its CUDA parts are replaced: registering host memory, and querying its device address.
    """
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host import mha

    monkeypatch.setattr(mha, "ALLOC_MEMORY_FUNCS", defaultdict(lambda: unpinned))
    monkeypatch.setattr(mha, "make_kernel_ptr_table", lambda tensors, *_, **__: pointers(tensors))

    def build() -> Setup:
        device = MHATokenToKVPool(
            size=24,
            page_size=PAGE,
            dtype=torch.bfloat16,
            head_num=2,
            head_dim=8,
            layer_num=LAYERS,
            device="cpu",
            enable_memory_saver=False,
            start_layer=FIRST,
            end_layer=FIRST + LAYERS,
        )
        for buffer in (*device.k_buffer, *device.v_buffer):
            buffer.copy_(random_bytes(*buffer.shape))
        buffers = KVBuffers(
            k=tuple(device.k_buffer),
            v=tuple(device.v_buffer),
            k_data_ptrs=pointers(device.k_buffer),
            v_data_ptrs=pointers(device.v_buffer),
            layout=KVBufferLayout.NHD,
        )
        info = MHABufferInfo(
            buffers=buffers,
            page_size=PAGE,
            head_num=2,
            head_dim=8,
            v_head_dim=8,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
        pool = mha.HiSparseMHATokenToKVPoolHost(
            *(info, 2.0, PAGE),
            device_capacity_tokens=24,
            start_layer=FIRST,
            end_layer=FIRST + LAYERS,
        )
        return Setup(pool, PAGE, [*device.k_buffer, *device.v_buffer], PAGE, device)

    return build


def copy(setup: Setup, op: Op, host: torch.Tensor, device: torch.Tensor) -> None:
    """Call the pool as HiSparse's coordinator does: once for a backup, once per layer for a load."""
    if op is Op.BACKUP:
        setup.pool.backup_from_device_all_layer(setup.pool_device, host, device, "kernel")
        return
    for layer in range(FIRST, FIRST + LAYERS):
        setup.pool.load_to_device_per_layer(setup.pool_device, host, device, layer, "kernel")


@pytest.mark.parametrize("on_device", [False, True])
def test_pages_come_back_and_each_tile_is_verified(
    traced: Start, hisparse: Any, *, on_device: bool
) -> None:
    """The class is recognised, layers have the model's numbers, and there is no finding."""
    run = traced(checksum=Checksum.LOADS)
    setup = hisparse()
    if on_device:
        beside(run, setup)
    before = [bytes_of(tensor, PAGE)[[1, 4]].clone() for tensor in setup.devices]
    host = indices([5, 0], PAGE)
    copy(setup, Op.BACKUP, host, indices([1, 4], PAGE))
    copy(setup, Op.LOAD, host, indices([2, 3], PAGE))
    for tensor, old in zip(setup.devices, before, strict=True):
        assert bytes_of(tensor, PAGE)[[2, 3]].equal(old)
    assert run.sink.of(Finding) == []
    (started,) = run.sink.of(Started)
    assert (started.classes_built, started.unrecognised) == (("HiSparseMHATokenToKVPoolHost",), ())
    events = run.sink.of(Copied)
    assert sum(event.verified for event in events) == 2 * 2 * LAYERS
    assert {event.op: event.cls for event in events} == dict.fromkeys(
        (Op.BACKUP, Op.LOAD), "HiSparseMHATokenToKVPoolHost"
    )


def test_single_tokens_are_compared_as_the_slots_they_are(traced: Start, hisparse: Any) -> None:
    """Three unordered tokens are reported as such and digested as slots; no page is accused."""
    run = traced(checksum=Checksum.LOADS)
    setup = hisparse()
    host, device = torch.tensor([9, 2, 30]), torch.tensor([5, 17, 6])
    assert int(host.max()) < HOST_PAGES * PAGE
    copy(setup, Op.BACKUP, host, device)
    event = run.sink.of(Copied)[0]
    assert (event.token_granular, event.h, event.mismatched) == (True, 3, 0)
    assert run.sink.of(Finding) == []


def test_a_flipped_byte_is_found(traced: Start, hisparse: Any) -> None:
    """Its page and layer are named, in this stage's layer numbers."""
    run = traced(checksum=Checksum.LOADS)
    setup = hisparse()
    host = indices([5, 0], PAGE)
    copy(setup, Op.BACKUP, host, indices([1, 4], PAGE))
    setup.pool.v_buffer.view(torch.uint8)[1, 5 * PAGE, 0, 0] ^= 0xFF
    copy(setup, Op.LOAD, host, indices([2, 3], PAGE))
    (finding,) = run.sink.of(Finding)
    assert (finding.component, finding.layer, finding.pages) == ("v", 1, (5,))
