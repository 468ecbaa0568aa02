"""The pools of each pool set, and that every byte of them matters."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.repro.samples import SMALLS, words

from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.engine import device_pools
from hicache_dbg.repro.mha import MhaSpec, mha_geometry, mha_model
from hicache_dbg.repro.run import run
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.repro.workload import Truth

COMPONENTS = [
    (pools, geometry.name, component.name)
    for pools, pool_set in POOL_SETS.items()
    for geometry in pool_set.geometries("bf16")
    for component in geometry.components
]


def _wiped_loads(pool: str, component: str) -> Callable[..., None]:
    """Make loads leave zeros in one component of one pool, layer by layer."""
    load = TransferEngine.load

    def wiped(self: TransferEngine, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        (copy,) = (copy for copy in op.copies if copy.mirror.name == pool)
        device = copy.mirror.device

        def wipe(layer: int) -> None:
            if layer in device.geometry.layer_ids:
                own = device.geometry.layer_ids.index(layer)
                device.layer(component, own)[torch.from_numpy(copy.device.ids)] = 0
            on_layer_done(layer)

        load(self, op, wipe)

    return wiped


@pytest.mark.parametrize(("pools", "pool", "component"), COMPONENTS)
def test_every_loaded_component_matters(
    truths: dict[str, Truth],
    monkeypatch: pytest.MonkeyPatch,
    pools: str,
    pool: str,
    component: str,
) -> None:
    """Zeros in one component of what was loaded change the replies."""
    monkeypatch.setattr(TransferEngine, "load", _wiped_loads(pool, component))
    result = run(SMALLS[pools], truth=truths[pools])
    assert result.tiers_used
    assert result.sessions.error == 0
    assert result.sessions.leak > 0


@pytest.mark.parametrize(
    ("pools", "layout"),
    [
        ("mla_index_k", Layout.LAYER_FIRST),
        ("mha", Layout.PAGE_HEAD),
        ("deepseek_v4", Layout.PAGE_FIRST_DIRECT),
    ],
)
def test_the_tiers_change_nothing(truths: dict[str, Truth], pools: str, layout: Layout) -> None:
    """Evicted, backed up and loaded back, every session replies as without tiers."""
    result = run(replace(SMALLS[pools], layout=layout.value), truth=truths[pools])
    assert result.tiers_used
    assert result.stats.evicted_pages > 0
    assert (result.sessions.corrupted, result.engine_error) == (0, "")


def test_only_heads_can_be_kept_apart() -> None:
    """Every set has the three common layouts; page_head is for pools with heads."""
    common = (Layout.LAYER_FIRST, Layout.PAGE_FIRST, Layout.PAGE_FIRST_DIRECT)
    assert {name: pool_set.layouts for name, pool_set in POOL_SETS.items()} == {
        "mla_index_k": common,
        "mha": (*common, Layout.PAGE_HEAD),
        "deepseek_v4": common,
    }


def test_deepseek_v4_has_five_pools_under_one_anchor() -> None:
    """A page is 256 tokens in each, in the widths of the formats."""
    pages = {
        geometry.name: (geometry.tokens_per_page, geometry.page_bytes())
        for geometry in POOL_SETS["deepseek_v4"].geometries("bf16")
    }
    assert pages == {
        "deepseek_v4_swa": (256, 149_760),
        "deepseek_v4_c4": (256, 37_440),
        "deepseek_v4_c4_indexer": (256, 16_384),
        "deepseek_v4_c4_state": (256, 65_536),
        "deepseek_v4_c128": (256, 1_728),
    }
    (indexer,) = (
        geometry
        for geometry in POOL_SETS["deepseek_v4"].geometries("fp8")
        if geometry.name == "deepseek_v4_c4_indexer"
    )
    assert indexer.page_bytes() == 8_448


@pytest.mark.parametrize("v_head_dim", [8, 16, 24])
def test_keys_and_values_may_differ_in_width(v_head_dim: int) -> None:
    """With values narrower than, as wide as and wider than keys, a split prompt gives the same result."""
    spec = MhaSpec(v_head_dim=v_head_dim)
    said = []
    for cut in (0, 70):
        pools = device_pools([mha_geometry(spec)], 2, torch.device("cpu"))
        model, table = mha_model(spec, pools), torch.arange(2)
        if cut:
            model.prefill(words(cut), 0, table)
        said.append(model.prefill(words(100)[cut:], cut, table))
        assert pools["mha"].layer("v", 0).shape == (2, 64, 8, v_head_dim)
    assert said[0] == said[1]
