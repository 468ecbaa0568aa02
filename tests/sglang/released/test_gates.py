"""Readers of layers that are still being loaded, through a gate and around it."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from released_base import LAYERS, Setup, bytes_of
from released_driving import backup, controller, indices, operation
from released_rows import mha_of_sglang
from released_streams import Delayed, device_events
from released_traced import Start, Traced
from sglang.srt.managers.cache_controller import CacheOperation

from hicache_dbg.tracer.events import FaultClass, Finding

PAGE, ELSEWHERE = 5, 2


@pytest.fixture(autouse=True)
def _events(monkeypatch: pytest.MonkeyPatch) -> None:
    device_events(monkeypatch)


def prepared(traced: Start) -> tuple[Traced, Setup, Any]:
    """Return a controller over SGLang's own pools, with a load queued of what is on the host."""
    run = traced()
    setup = mha_of_sglang("layer_first")
    backup(setup, indices([PAGE], setup.page), indices([1], setup.page), "kernel")
    owner = controller(setup, "kernel")
    for _ in (
        owner.layer_done_counter.events
    ):  # the compiled helper leaves the first load of each to Python
        owner.load_queue.append(operation(indices([PAGE], setup.page), indices([3], setup.page)))
        owner.start_loading()
    owner.load_queue.append(
        operation(indices([PAGE], setup.page), indices([ELSEWHERE], setup.page))
    )
    owner.layer_done_counter.set_consumer(0)  # what the batch is given
    return run, setup, owner


def here(setup: Setup, layer: int, number: int) -> torch.Tensor:
    """Return a page of K as the model would read it."""
    page: torch.Tensor = bytes_of(setup.devices[layer], setup.rows)[number]
    return page


def test_an_ungated_reader_of_a_delayed_load_is_found(traced: Start) -> None:
    """Layer 1 is read too early: stale bytes, and a finding that names layer, pages and reader."""
    run, setup, owner = prepared(traced)
    with Delayed.before(1, owner, setup.pool):
        setup.pool_device.get_key_buffer(0)
        stale = setup.pool_device._get_key_buffer(1).clone()
        assert not bytes_of(stale, setup.rows)[ELSEWHERE].equal(here(setup, 1, 1))
    assert here(setup, 1, ELSEWHERE).equal(here(setup, 1, 1))  # it came later
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.READ_BEFORE_LOAD
    assert (finding.pool, finding.layer, finding.pages) == ("kv", 1, (ELSEWHERE,))
    assert (finding.expected, finding.got) == ("a wait for layer 1", "a wait for layer 0")
    assert "MHATokenToKVPool._get_key_buffer of layer 1 on MainThread at test_gates.py:" in (
        finding.message
    )
    assert "previous access: load in set 0 on Thread-" in finding.message


def test_its_gated_twin_is_clean(traced: Start) -> None:
    """The same read through the gate waits, gets the bytes, and gives no finding."""
    run, setup, owner = prepared(traced)
    with Delayed.before(1, owner, setup.pool):
        for layer in range(LAYERS):
            key = setup.pool_device.get_key_buffer(layer)
            assert bytes_of(key, setup.rows)[ELSEWHERE].equal(here(setup, layer, 1))
            setup.pool_device._get_key_buffer(layer)  # ordered by the wait before it
        setup.pool_device.get_kv_buffer(1)
    assert run.sink.of(Finding) == []


def test_a_wait_for_a_layer_too_few_is_no_wait(traced: Start) -> None:
    """A reader of layer 1 that waited for layer 0 reads too early, gate or not."""
    run, setup, owner = prepared(traced)
    with Delayed.before(1, owner, setup.pool):
        owner.layer_done_counter.wait_until(0)
        setup.pool_device._get_value_buffer(1)
    (finding,) = run.sink.of(Finding)
    assert finding.got == "a wait for layer 0"


def test_a_backup_of_pages_under_a_load_is_found(traced: Start) -> None:
    """Pages that a load is still writing must not be backed up; other pages may."""
    run, setup, owner = prepared(traced)
    pool, device = setup.pool, setup.pool_device
    with Delayed.before(1, owner, pool):
        host = indices([3], setup.page)
        pool.backup_from_device_all_layer(device, host, indices([4], setup.page), "kernel")
        pool.backup_from_device_all_layer(device, host, indices([ELSEWHERE], setup.page), "kernel")
    findings = [f for f in run.sink.of(Finding) if f.check == "gates"]
    (finding,) = findings
    assert finding.cls is FaultClass.READ_BEFORE_LOAD
    assert finding.pages == (ELSEWHERE,)
    assert "backup of kv" in finding.message


def test_a_batch_without_a_load_is_never_accused(traced: Start) -> None:
    """Decode reads other pages: without a consumer its reads are no finding."""
    run, setup, owner = prepared(traced)
    with Delayed.before(1, owner, setup.pool):
        owner.layer_done_counter.set_consumer(-1)
        setup.pool_device._get_key_buffer(1)
    assert run.sink.of(Finding) == []


def test_a_finished_load_asks_nobody(traced: Start) -> None:
    """Once the device has completed the last layer, ungated reads are in order."""
    run, setup, owner = prepared(traced)
    owner.start_loading()
    for layer in range(LAYERS):
        setup.pool_device._get_key_buffer(layer)
    assert run.sink.of(Finding) == []


def test_the_events_of_a_load_stay_as_fast_as_they_were(traced: Start) -> None:
    """Nobody moved their attributes to a dictionary, and none of ours is left among them."""
    _, setup, owner = prepared(traced)
    with Delayed.before(1, owner, setup.pool):
        owner.layer_done_counter.wait_until(1)
    for events in owner.layer_done_counter.events:
        assert not any(type(value) is dict for value in gc.get_referents(events))
        assert "complete" not in vars(events)


def test_a_method_that_somebody_else_put_on_a_loads_events_stays(traced: Start) -> None:
    """It is called for each layer, and is still there afterwards."""
    _, setup, owner = prepared(traced)
    layers: list[int] = []

    def counted(real: Callable[[int], None]) -> Callable[[int], None]:
        def complete(layer: int) -> None:
            layers.append(layer)
            real(layer)

        return complete

    for events in owner.layer_done_counter.events:
        events.complete = counted(events.complete)
    with Delayed.before(1, owner, setup.pool):
        owner.layer_done_counter.wait_until(1)
    assert layers == list(range(LAYERS))
    assert all("complete" in vars(events) for events in owner.layer_done_counter.events)


@pytest.mark.parametrize("trouble", ["switched off", "failed"])
def test_a_load_that_nobody_followed_to_its_end_accuses_nobody(
    traced: Start, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Neither its own readers nor those of the next loads in its set."""
    run, setup, owner = prepared(traced)
    session = run.attachment.observer.session()
    assert session is not None
    merge = CacheOperation.merge_ops

    def amid(operations: Any) -> Any:
        if trouble == "failed":
            raise MemoryError
        session.switch(on=False)
        return merge(operations)

    def read() -> None:
        for layer in range(LAYERS):
            setup.pool_device._get_key_buffer(layer)

    with monkeypatch.context() as patch, suppress(MemoryError):
        patch.setattr(CacheOperation, "merge_ops", amid)
        owner.start_loading()
    session.switch(on=True)
    read()
    for _ in owner.layer_done_counter.events:
        owner.load_queue[:] = [
            operation(indices([PAGE], setup.page), indices([ELSEWHERE], setup.page))
        ]
        owner.layer_done_counter.set_consumer(owner.start_loading())
        read()
    assert run.sink.of(Finding) == []
    gates = run.attachment.observer.gates
    assert not gates.sending
    assert not gates.on_way
    assert not any("complete" in vars(events) for events in owner.layer_done_counter.events)


def test_a_load_that_was_begun_and_never_submitted_is_forgotten_with_the_next(
    traced: Start,
) -> None:
    """Only the newest one of a thread is still being submitted, for all that is known."""
    run, _, owner = prepared(traced)
    owner.start_loading()

    def start_loading() -> None:
        owner.layer_done_counter.update_producer()

    for _ in range(2 * len(owner.layer_done_counter.events)):
        start_loading()
    gates = run.attachment.observer.gates
    assert list(gates.sending) == [gates.here.loading]


def test_a_load_names_where_it_began(traced: Start) -> None:
    """Also one that another line began than the last load of its set."""
    run, setup, owner = prepared(traced)
    gates, sites = run.attachment.observer.gates, list[str]()

    def first() -> None:
        owner.start_loading()

    def second() -> None:
        owner.start_loading()

    for begin in (first, second) * 3:
        owner.load_queue[:] = [operation(indices([PAGE], setup.page), indices([3], setup.page))]
        begin()
        events = owner.layer_done_counter.events[owner.layer_done_counter.producer_index]
        sites.append(gates.current[id(events)].by.site[1].function)
        assert gates.here.loading is None
    assert sites == ["first", "second"] * 3
    assert len({id(load.passed) for load in gates.current.values()}) == len(gates.current)
    assert len({id(load.pages) for load in gates.current.values()}) == len(gates.current)
