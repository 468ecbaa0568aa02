"""Gates of nested device pools: the outer pool waits, the inner pools are read."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from typing import Any

import pytest
from released_inner import INNER, LAYERS, Read
from released_rows import mla
from released_streams import device_events, on_its_way
from released_traced import Start, Traced

from hicache_dbg.tracer.events import FaultClass, Finding


@pytest.fixture(autouse=True)
def _events(monkeypatch: pytest.MonkeyPatch) -> None:
    device_events(monkeypatch)


def prepared(traced: Start, read: Read) -> tuple[Traced, Any, Any]:
    """Return started tracing, a pool, and the counter that it was given."""
    from sglang.srt.managers.cache_controller import LayerDoneCounter

    run = traced()
    mla("layer_first")
    pool, counter = read.build(), LayerDoneCounter(LAYERS)
    pool.register_layer_transfer_counter(counter)
    return run, pool, counter


@pytest.mark.parametrize("name", INNER)
def test_a_layer_that_is_read_past_the_outer_pool_is_found(traced: Start, name: str) -> None:
    """The inner pool has no gate: an early read of it is found, with the gate's number of the layer."""
    read = INNER[name]
    run, pool, counter = prepared(traced, read)
    with on_its_way(counter, read.layer):
        read.past(pool)
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.READ_BEFORE_LOAD
    assert finding.layer == read.layer
    assert finding.expected == f"a wait for layer {read.layer}"
    assert "test_inner_gates.py" in finding.message or "released_inner.py" in finding.message


@pytest.mark.parametrize("name", INNER)
def test_its_gated_twin_is_silent(traced: Start, name: str) -> None:
    """Through the outer pool the same layer is waited for, and gives no finding."""
    read = INNER[name]
    run, pool, counter = prepared(traced, read)
    with on_its_way(counter, read.layer):
        read.gated(pool)
        read.past(pool)  # ordered by the wait before it
    with on_its_way(counter, read.layer + 1):
        read.past(pool)
    assert run.sink.of(Finding) == []


@pytest.mark.parametrize("name", INNER)
def test_a_wait_for_the_layer_before_is_too_early(traced: Start, name: str) -> None:
    """The inner pool's layer number is smaller than the gate's, so waiting for it is not enough."""
    read = INNER[name]
    run, pool, counter = prepared(traced, read)
    with on_its_way(counter, read.layer):
        counter.wait_until(read.layer - 1)
        read.past(pool)
    (finding,) = run.sink.of(Finding)
    assert finding.got == f"a wait for layer {read.layer - 1}"
