"""NIXL's wire: which of its builds is taken."""

import pytest

from hicache_dbg.pools.handover.wire import packages_for


@pytest.mark.parametrize(
    ("cuda", "first"), [("12.8", "nixl_cu12"), ("13.0", "nixl_cu13"), (None, "nixl_cu12")]
)
def test_the_build_for_the_cuda_of_torch_is_tried_first(cuda: str | None, first: str) -> None:
    """The other one starts too, and then cannot reach a GPU's memory; all are tried."""
    assert packages_for(cuda)[0] == f"{first}._api"
    assert len(set(packages_for(cuda))) == 3
