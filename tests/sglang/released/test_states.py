"""Additional states that a Mamba model registers: they move with their slot and are compared."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from released_base import LAYERS, NUMBER
from released_driving import backup, indices, load
from released_pages import mamba, mamba_beside
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.tensors import row_parts
from hicache_dbg.tracer.events import Copied, FaultClass, Finding

pytestmark = pytest.mark.skipif(NUMBER < (0, 5, 22), reason="a slot has no such states")

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]


@pytest.mark.parametrize("number", [0, 1])
def test_a_byte_of_a_registered_state_that_changed_is_found(traced: Start, number: int) -> None:
    """The finding has the state's own name and slot, and there is no other finding."""
    run = traced()
    setup = mamba_beside("page_first")
    host = indices(HOST, 1)
    backup(setup, host, indices(FROM, 1), "kernel")
    setup.pool.slot_state_buffers[number][HOST[1]].view(torch.uint8).reshape(-1)[-1] ^= 0xFF
    load(setup, host, indices(TO, 1), "kernel")
    event = run.sink.of(Copied)[-1]
    assert (event.mismatched, event.verified) == (1, 4 * LAYERS * len(HOST) - 1)
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.component) == (FaultClass.BIT_FLIP, f"state{number}")
    assert finding.pages == (HOST[1],)


def test_a_row_that_does_not_divide_is_compared_to_its_last_byte(traced: Start) -> None:
    """Five values over two layers: the parts overlap, and every value is in one."""
    run = traced()
    setup = mamba("page_first", beside=[torch.rand(7, 5)])
    host = indices(HOST, 1)
    backup(setup, host, indices(FROM, 1), "kernel")
    setup.pool.slot_state_buffers[0][HOST[2], 4] += 1
    load(setup, host, indices(TO, 1), "kernel")
    (finding,) = run.sink.of(Finding)
    assert (finding.component, finding.pages) == ("state0", (HOST[2],))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_parts_of_a_row_are_all_of_it(width: int, count: int, slots: int) -> None:
    """There are as many equal parts as requested, which together cover every value of every slot."""
    rows = torch.arange(slots * width).view(slots, width)
    parts = row_parts(rows, count)
    assert len(parts) == count
    assert len({part.shape for part in parts}) == 1
    for slot in range(slots):
        seen = {value for part in parts for value in part[slot].tolist()}
        assert seen == set(rows[slot].tolist())
