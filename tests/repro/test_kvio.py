"""The model's stored formats, byte by byte."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repro.samples import make_model

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Component, RunSpec
from hicache_dbg.pools.kinds import IndexDtype, index_k
from hicache_dbg.repro.kvio import FP8_MAX, Slots, index_store


@pytest.mark.parametrize(("dtype", "key_bytes"), [("bf16", 256), ("fp8", 132)])
def test_widths_are_those_of_the_formats(dtype: IndexDtype, key_bytes: int) -> None:
    """A token's latent is 1,152 B; its index key 256 B in bf16 and 132 B in fp8."""
    _, pools = make_model(3, index_dtype=dtype)
    latent, keys = pools["mla"], pools["dsa_index_k"]
    assert latent.layer("latent", 0).nbytes == 3 * 64 * 1152
    assert keys.layer("index_k", 0).nbytes == 3 * 64 * key_bytes


def test_an_fp8_page_is_keys_then_scales() -> None:
    """Byte 128 * slot holds a slot's first key, byte 8192 + 4 * slot its float32 scale."""
    pool = DevicePool(index_k(1, 64, "fp8"), 2)
    store = index_store(pool)
    key = torch.zeros(1, 128, dtype=torch.float64)
    key[0, 0] = 896.0
    store.write(0, Slots(torch.tensor([1]), torch.tensor([5])), key)

    page = pool.layer("index_k", 0)[1]
    scale = page[8192 + 4 * 5 : 8192 + 4 * 6].view(torch.float32)
    code = page[128 * 5 : 128 * 5 + 1].view(torch.float8_e4m3fn)
    assert scale.item() == 896.0 / FP8_MAX
    assert code.float().item() == FP8_MAX
    assert not pool.layer("index_k", 0)[0].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), magnitude=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]))
def test_fp8_error_is_that_of_four_bits(seed: int, magnitude: float) -> None:
    """Quantising loses at most a sixteenth of a value, or one step at the token's scale."""
    store = index_store(DevicePool(index_k(1, 64, "fp8"), 1))
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(64, 128, dtype=torch.float64, generator=generator) * magnitude
    store.write(0, Slots(torch.zeros(64, dtype=torch.int64), torch.arange(64)), keys)
    back = store.read(0, torch.tensor([0]))[0]
    step = keys.abs().amax(-1, keepdim=True) / FP8_MAX * 2**-10
    assert ((back - keys).abs() <= keys.abs() * (1 / 16 + 1e-6) + step * 1.001).all()


def test_a_zero_key_comes_back_as_zero() -> None:
    """An all-zero key gets a non-zero scale."""
    store = index_store(DevicePool(index_k(1, 64, "fp8"), 1))
    slots = Slots(torch.tensor([0]), torch.tensor([0]))
    store.write(0, slots, torch.zeros(1, 128, dtype=torch.float64))
    assert not store.read(0, torch.tensor([0])).any()


def test_an_unknown_storage_is_refused() -> None:
    """Index-K in an unsupported dtype is an error that names the pool and the dtype."""
    halves = Component("index_k", torch.float16, (RunSpec("key", 256),))
    pool = DevicePool(replace(index_k(1, 64, "bf16"), components=(halves,)), 1)
    with pytest.raises(TypeError, match=r"dsa_index_k stores index-K as torch\.float16"):
        index_store(pool)
