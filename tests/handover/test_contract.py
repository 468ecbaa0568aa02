"""The contract is compared field by field before a byte moves, and refused with both values."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.handover.pair import HandWire, agree, links
from tests.pools.caching import LAYERS, P, group_of

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.contract import contract_of, differences
from hicache_dbg.pools.handover.errors import ContractRefused, PeerLost
from hicache_dbg.pools.kinds import index_k, mha, mla


def with_bf16_index() -> PoolGroup:
    """Return pools whose index has another dtype than ``group_of`` makes."""
    return PoolGroup.build(
        [mla(LAYERS, P, torch.uint8, kv_lora_rank=128, rope_dim=2), index_k(LAYERS, P, "bf16")],
        device_pages=8,
        host_pages=8,
        layout=Layout.PAGE_FIRST,
    )


def test_ends_that_agree_shake_hands_whatever_their_sizes_and_host_layouts() -> None:
    """The number of pages and the host layout may differ between the ends."""
    small, large = group_of(4), group_of(32, layout=Layout.LAYER_FIRST)
    a, b, _ = links(small, large, (HandWire(), HandWire()))
    assert agree(a, b) == [None, None]
    assert a.theirs is not None
    assert a.theirs.pages == 32


def test_another_dtype_is_refused_at_both_ends_with_both_values() -> None:
    """Nothing is moved, and both ends name the field."""
    a, b, _ = links(group_of(), with_bf16_index(), (HandWire(), HandWire()))
    for refused in agree(a, b):
        assert isinstance(refused, ContractRefused)
        assert "dsa_index_k.index_k.page_bytes: prefill has 528, decode has 1024" in str(refused)
        assert {field.rpartition(".")[2] for field, *_ in refused.differences} >= {
            "dtype",
            "slot_bytes",
            "page_bytes",
        }
        assert all(field.startswith("dsa_index_k.") for field, *_ in refused.differences)


def test_another_model_is_refused() -> None:
    """Pages of other weights have the right size and the wrong content."""
    a, b, _ = links(group_of(), group_of(), (HandWire(), HandWire()), models=("a", "b"))
    assert [getattr(error, "differences", None) for error in agree(a, b)] == [
        (("model", "a", "b"),)
    ] * 2


def test_another_order_of_the_tiles_is_refused() -> None:
    """Tiles are paired by position: a peer of another version may list the same ones differently."""
    a, b, _ = links(group_of(), group_of(), (HandWire(), HandWire()))
    b.ours = msgspec.structs.replace(b.ours, planes=b.ours.planes[::-1])
    for refused in agree(a, b):
        assert isinstance(refused, ContractRefused)
        assert "plane 0: prefill has mla.latent layer 0 of" in str(refused)


@given(st.integers(1, 4), st.integers(1, 16), st.integers(1, 4), st.integers(0, 3))
def test_every_field_of_the_geometry_is_compared(
    layers: int, page: int, heads: int, which: int
) -> None:
    """A differing field is named, along with only those that depend on it."""
    other = [(layers + 1, page, heads), (layers, page + 1, heads), (layers, page, heads + 1)]
    twin = (layers, page, heads) if which == 3 else other[which]

    def contract(shape: tuple[int, int, int]) -> dict[str, str]:
        group = PoolGroup.build(
            [mha(shape[0], shape[1], heads=shape[2], head_dim=8)],
            device_pages=1,
            host_pages=1,
            layout=Layout.LAYER_FIRST,
        )
        return contract_of(group, "")

    found = {
        name.rpartition(".")[2]
        for name, *_ in differences(contract((layers, page, heads)), contract(twin))
    }
    follows = [
        {"layers"},
        {"tokens_per_page", "slots_per_page", "page_bytes"},
        {"slot_bytes", "page_bytes", "runs"},
        set(),
    ][which]
    assert found == follows


def test_two_ends_of_one_role_do_not_pair() -> None:
    """Two prefill ends have nothing to hand each other."""
    a, b, _ = links(group_of(), group_of(), (HandWire(), HandWire()))
    b.ours = a.ours
    assert all("expected one each" in str(error) for error in agree(a, b))


def test_a_silent_peer_is_told_in_bounded_time() -> None:
    """A peer that never says hello is lost after a timeout."""
    a, _, _ = links(group_of(), group_of(), (HandWire(), HandWire()), silence_s=0.2)
    with pytest.raises(PeerLost, match=r"did not say hello within 0\.2 s"):
        a.agree()
