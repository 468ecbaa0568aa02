"""Layers of draft models: stored after the target's own in its host pool, loaded between them."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from collections.abc import Callable

import pytest
from released_base import LAYERS, NUMBER, Setup, bytes_of
from released_driving import LAYER_COUNT, backup, indices
from released_lane import beside
from released_rows import mha_with_drafts
from released_traced import Start

from hicache_dbg.tracer.events import Copied, Finding, Op
from hicache_dbg.tracer.settings import Checksum

pytestmark = pytest.mark.skipif(NUMBER < (0, 5, 23), reason="drafts have pools of their own")

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]
COMPONENTS = 2


def load(setup: Setup, drafts: int, *, shared: bool) -> None:
    """Load as the hybrid controller does: a transfer for the target and one for each draft.

    ``shared`` says whether all of them get the same index tensors.
    """
    from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine

    host, device = indices(HOST, setup.page), indices(TO, setup.page)

    def only(at: int, layer: int) -> Callable[[int], int | None]:
        return lambda number: layer if number == at else None

    transfers = [L2Transfer(setup.pool, None, host, device)]
    for depth in range(drafts):
        mapper = only(min(depth, LAYERS - 1), LAYERS + depth)
        ends = (host, device) if shared else (host.clone(), device.clone())
        transfers.append(L2Transfer(setup.pool, None, *ends, layer_mapper=mapper, is_draft=True))
    L2TransferEngine("kernel").submit_host_to_device(transfers, **{LAYER_COUNT: LAYERS})


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("drafts", [1, 3])
def test_a_draft_comes_back_with_its_target(
    traced: Start, drafts: int, *, shared: bool, on_device: bool
) -> None:
    """Each tile of target and drafts is verified once, even if a draft comes after the last layer."""
    run = traced(checksum=Checksum.LOADS)
    setup = mha_with_drafts("layer_first", drafts)
    if on_device:
        beside(run, setup)
    before = [bytes_of(tensor, setup.rows)[FROM].clone() for tensor in setup.devices]
    backup(setup, indices(HOST, setup.page), indices(FROM, setup.page), "kernel")
    load(setup, drafts, shared=shared)
    for tensor, old in zip(setup.devices, before, strict=True):
        assert bytes_of(tensor, setup.rows)[TO].equal(old)
    assert run.sink.of(Finding) == []
    stored, *loads = run.sink.of(Copied)
    assert (stored.op, stored.layers) == (Op.BACKUP, LAYERS + drafts)
    assert len(loads) == (1 if shared else 1 + drafts)
    assert sum(event.layers for event in loads) == LAYERS + drafts
    tiles = len(HOST) * (LAYERS + drafts) * COMPONENTS
    assert sum(event.verified for event in loads) == tiles
    assert all(not event.skipped for event in loads)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_byte_of_a_draft_that_flips_is_found(traced: Start, *, on_device: bool) -> None:
    """The finding names the draft's layer, numbered after those of the target."""
    run = traced(checksum=Checksum.LOADS)
    setup = mha_with_drafts("layer_first", 1)
    if on_device:
        beside(run, setup)
    backup(setup, indices(HOST, setup.page), indices(FROM, setup.page), "kernel")
    setup.pool.k_buffer[LAYERS, HOST[1] * setup.page] += 1
    load(setup, 1, shared=True)
    (finding,) = run.sink.of(Finding)
    assert (finding.layer, finding.pages) == (LAYERS, (HOST[1],))
