"""The digester in torch operations, on the CPU: as exact as the kernels, and as careful."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from tests.tracer.digest.geometry import Tiles, tiles

from hicache_dbg.tracer.digest import select
from hicache_dbg.tracer.digest.select import digester_for
from hicache_dbg.tracer.digest.torch_digester import TorchDigester

_UNSIGNED = 1 << 64


def _digests(case: Tiles, pages: torch.Tensor, unit: int = 1) -> torch.Tensor:
    out = torch.full((len(case.layers), len(pages)), -1)
    TorchDigester("cpu").digest(
        case.view, case.layers, pages, case.first, case.last, out=out, unit=unit
    )
    return out


@settings(deadline=None)
@given(tiles())
def test_it_agrees_with_the_package(case: Tiles) -> None:
    """Over any geometry the digests are those of the xxhash package."""
    got = _digests(case, torch.from_numpy(case.pages))
    assert [[value % _UNSIGNED for value in row] for row in got.tolist()] == case.expected()


@settings(deadline=None)
@given(tiles())
def test_ids_may_count_slots(case: Tiles) -> None:
    """With ids that count four to a page, page ``id // 4`` is digested."""
    pages = torch.from_numpy(case.pages)
    assert torch.equal(_digests(case, 4 * pages + 3, unit=4), _digests(case, pages))


@settings(deadline=None, max_examples=25)
@given(tiles())
def test_a_page_outside_has_digest_zero(case: Tiles) -> None:
    """An id past the tensor, or before it, is not followed."""
    pages = torch.tensor([-1, case.view.pages, 1 << 40, 0])
    got = _digests(case, pages)
    assert not got[:, :3].any()
    assert got[:, 3].all()


@settings(max_examples=1)
@given(tiles())
def test_a_view_elsewhere_is_refused(case: Tiles) -> None:
    """A view on a GPU is not read on the CPU."""
    with pytest.raises(ValueError, match="expected a view on cpu"):
        TorchDigester("cpu").prepare(replace(case.view, device="cuda:0"))


def test_the_fallback_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Where the kernels cannot run the torch digester is chosen, with the reason, once."""
    select._say_once.cache_clear()
    first, second = digester_for("cpu"), digester_for("cpu")
    assert isinstance(first, TorchDigester)
    assert isinstance(second, TorchDigester)
    assert [record.message for record in caplog.records] == [
        "digests on cpu run as torch operations, not as one kernel: the kernels need a CUDA device"
    ]
