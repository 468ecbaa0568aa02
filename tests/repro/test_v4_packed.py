"""DeepSeek-V4's entries and compress states, byte by byte."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4, deepseek_v4_c4_state, deepseek_v4_swa
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.repro.kvio import Slots
from hicache_dbg.repro.v4.packed import EntryStore, StateStore


def _slots(page: int, *offsets: int) -> Slots:
    return Slots(torch.full((len(offsets),), page), torch.tensor(offsets))


def test_an_entry_is_fp8_then_bf16_and_its_scales_lie_apart() -> None:
    """Slot 5 of 64: 576 B from byte 5 x 576 on, eight scale bytes from 36,864 + 5 x 8 on."""
    pool = DevicePool(deepseek_v4_c4(1), 2)
    entry = torch.zeros(1, 512, dtype=torch.float64)
    entry[0, 64] = 896.0  # the first value of the second block: its scale is 2
    entry[0, 448] = -1.5
    EntryStore(pool).write(0, _slots(1, 5), entry)

    page = pool.layer("kv", 0)[1]
    value = page[5 * 576 : 6 * 576]
    assert value[64:65].view(torch.float8_e4m3fn).float().item() == 448.0
    assert value[448:450].view(torch.bfloat16).item() == -1.5
    assert page[36_864 + 5 * 8 : 36_864 + 6 * 8].tolist() == [0, 128, 0, 0, 0, 0, 0, 0]
    assert torch.count_nonzero(page) == 4
    assert not pool.layer("kv", 0)[0].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), magnitude=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]))
def test_what_is_read_is_what_four_bits_can_hold(seed: int, magnitude: float) -> None:
    """The fp8 part loses a sixteenth of a value or one step of its block's scale, bf16 a 256th."""
    store = EntryStore(DevicePool(deepseek_v4_swa(1), 1))
    generator = torch.Generator().manual_seed(seed)
    entries = torch.randn(9, 512, dtype=torch.float64, generator=generator) * magnitude
    slots = _slots(0, *range(9))
    store.write(0, slots, entries)
    back = store.read(0, slots)
    lost = (back - entries).abs()
    blocks = entries[:, :448].unflatten(-1, (7, 64))
    step = blocks.abs().amax(-1, keepdim=True) * 2 / 448 * 2**-10
    assert (lost[:, :448].unflatten(-1, (7, 64)) <= blocks.abs() / 16 + step).all()
    assert (lost[:, 448:] <= entries[:, 448:].abs() / 256).all()


@pytest.mark.parametrize("magnitude", [1.0, 3e-5])
def test_what_was_stored_is_stored_as_the_same_bytes(magnitude: float) -> None:
    """Storing what was read changes no value, so a copied page reads the same."""
    store = EntryStore(DevicePool(deepseek_v4_c4(1), 1))
    generator = torch.Generator().manual_seed(1)
    entries = torch.randn(64, 512, dtype=torch.float64, generator=generator) * magnitude
    slots = _slots(0, *range(64))
    store.write(0, slots, entries)
    once = store.read(0, slots)
    store.write(0, slots, once)
    assert torch.equal(store.read(0, slots), once)


def test_layers_are_the_models() -> None:
    """A pool of layers 0 and 2 is indexed by model layer, so layer 2 is its second."""
    pool = DevicePool(deepseek_v4_c4((0, 2)), 1)
    EntryStore(pool).write(2, _slots(0, 0), torch.ones(1, 512, dtype=torch.float64))
    assert [bool(pool.layer("kv", own).any()) for own in (0, 1)] == [False, True]


def test_a_state_is_kept_where_its_token_belongs() -> None:
    """Token 261 is in the second page of its sequence, slot 261 % 8, rounded to the dtype."""
    pool = DevicePool(deepseek_v4_c4_state((0,)), 4)
    store = StateStore(pool)
    slots = store.slots(torch.tensor([[3, 1]]), torch.tensor([[261]])).flat()
    assert (slots.pages.tolist(), slots.offsets.tolist()) == ([1], [5])
    states = store.rounded(torch.linspace(-1, 1, 2048, dtype=torch.float64).unsqueeze(0))
    store.write(0, slots, states)
    assert torch.equal(store.read(0, slots), states)
    assert torch.equal(pool.layer("state", 0)[1].view(8, 2048)[5], states[0].float())
