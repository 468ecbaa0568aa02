"""MXFP8: rows of values, and the scales of each page in one block beside them."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import pytest
import torch
from released_base import NUMBER
from released_driving import backup, indices, load
from released_lane import beside
from released_mxfp8 import PAGE, mxfp8
from released_traced import Start

from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Started
from hicache_dbg.tracer.settings import Checksum

pytestmark = pytest.mark.skipif(NUMBER < (0, 5, 22), reason="the class came later")


def test_both_ends_of_values_and_scales_are_told(traced: Start) -> None:
    """The start has four components, and a page of scales has the same size at both ends."""
    run = traced()
    setup = mxfp8("page_first")
    backup(setup, indices([5], PAGE), indices([1], PAGE), "kernel")
    (mirror,) = run.sink.of(Started)[-1].mirrors
    ends = [
        {part.name: (part.page_bytes, part.dtype) for part in end.components}
        for end in (mirror.device, mirror.host)
    ]
    rows, scales = (PAGE * 2 * 32, "float8_e4m3fn"), (PAGE * 2, "uint8")
    assert ends == [{"k": rows, "v": rows, "k_scale": scales, "v_scale": scales}] * 2
    (event,) = run.sink.of(Copied)
    assert event.bytes == setup.pool.size_per_token * PAGE
    assert run.sink.of(Finding) == []


@pytest.mark.parametrize("on_device", [False, True])
def test_a_changed_scale_is_found(traced: Start, *, on_device: bool) -> None:
    """One byte of V's scales changes in one layer and page; values and K's scales stay verified."""
    run = traced(checksum=Checksum.LOADS)
    setup = mxfp8("page_first")
    if on_device:
        beside(run, setup)
    host = indices([5, 0], PAGE)
    backup(setup, host, indices([1, 4], PAGE), "kernel")
    setup.pool.v_scale_host[5, 1, 7] ^= 0xFF
    load(setup, host, indices([2, 3], PAGE), "kernel")
    (finding,) = run.sink.of(Finding)
    assert (finding.component, finding.layer, finding.pages) == ("v_scale", 1, (5,))
    event = run.sink.of(Copied)[-1]
    assert (event.mismatched, event.verified) == (1, event.tiles - 1)


def test_tokens_that_are_no_pages_are_an_index_space(traced: Start) -> None:
    """Values go by token, scales by the first token's page: for unaligned tokens they diverge."""
    run = traced(checksum=Checksum.LOADS)
    setup = mxfp8("page_first")
    tokens = torch.arange(PAGE) + 17
    load(setup, tokens, tokens, "kernel")
    assert FaultClass.INDEX_SPACE in {finding.cls for finding in run.sink.of(Finding)}
