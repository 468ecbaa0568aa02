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
from released_streams import Delayed, device_events, on_its_way
from released_traced import Start, Traced
from sglang.srt.managers.cache_controller import CacheOperation, LayerLoadingEvent

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


def test_the_events_of_a_load_stay_as_fast_as_they_were(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody moved their attributes to a dictionary, none of ours was ever among them, or on their class."""
    complete, names = vars(LayerLoadingEvent)["complete"], list[str]()

    def noted(events: Any, name: str, value: Any) -> None:
        names.append(name)
        object.__setattr__(events, name, value)

    _, setup, owner = prepared(traced)
    assert vars(LayerLoadingEvent)["complete"] is complete
    with monkeypatch.context() as patch:
        patch.setattr(LayerLoadingEvent, "__setattr__", noted, raising=False)
        with Delayed.before(1, owner, setup.pool):
            owner.layer_done_counter.wait_until(1)
    assert names == []
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


def test_a_subclass_of_sglangs_events_completes_each_layer(traced: Start) -> None:
    """What it does instead is done."""
    layers: list[int] = []

    class Counted(LayerLoadingEvent):  # type: ignore[misc]
        def complete(self, layer_index: int) -> None:
            layers.append(layer_index)
            super().complete(layer_index)

    run, setup, owner = prepared(traced)
    counter = owner.layer_done_counter
    counter.events = [Counted(LAYERS) for _ in counter.events]
    counter.reset()
    counter.set_consumer(0)
    with Delayed.before(1, owner, setup.pool):
        setup.pool_device.get_key_buffer(0)
        setup.pool_device._get_key_buffer(1)
    (finding,) = run.sink.of(Finding)
    assert finding.got == "a wait for layer 0"
    assert layers == list(range(LAYERS))


def test_a_load_of_an_unknown_function_is_followed_by_what_it_completes(traced: Start) -> None:
    """A wait counts as far as its layers are complete; behind the last one SGLang's method is back."""
    run, setup, owner = prepared(traced)
    counter = owner.layer_done_counter
    with on_its_way(counter, 1):
        counter.wait_until(0)
        setup.pool_device._get_key_buffer(1)
        Delayed.go_on()
    (finding,) = run.sink.of(Finding)
    assert finding.got == "a wait for layer 0"
    with on_its_way(counter, 1):
        counter.wait_until(0)
        counter.wait_until(1)
    assert len(run.sink.of(Finding)) == 1
    assert not any("complete" in vars(events) for events in counter.events)


@pytest.mark.parametrize("after", ["unknown", "known", "detached"])
@pytest.mark.parametrize("theirs", [False, True], ids=["SGLang's", "theirs"])
def test_a_load_of_an_unknown_function_that_stops_leaves_nothing_behind(
    traced: Start, after: str, theirs: bool
) -> None:
    """What completes the set's next load takes ours off; somebody's own stays."""
    run, _, owner = prepared(traced)
    counter = owner.layer_done_counter
    index, layers = counter.producer_index, list[int]()
    events = counter.events[(index + 1) % len(counter.events)]
    real = events.complete

    def own(layer: int) -> None:
        layers.append(layer)
        real(layer)

    if theirs:
        events.complete = own
    counter.update_producer()
    assert "complete" in vars(events)
    events.complete(0)
    counter.producer_index = index
    if after == "detached":
        run.attachment.detach()
    if after == "known":
        owner.start_loading()
    else:
        counter.update_producer()
        for layer in range(LAYERS):
            events.complete(layer)
    assert vars(events).get("complete") is (own if theirs else None)
    assert layers == ([0, *range(LAYERS)] if theirs else [])


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_gates_of_another_form_accuse_nobody(
    traced: Start, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Without its ``complete`` nobody knows how far a load of an unknown function is; it is said."""
    real = LayerLoadingEvent.complete

    def complete(events: Any, layer: int) -> None:
        real(events, layer)

    monkeypatch.setattr(LayerLoadingEvent, "complete", complete)
    run, setup, owner = prepared(traced)
    counter = owner.layer_done_counter
    with Delayed.before(1, owner, setup.pool) if known else on_its_way(counter, 1):
        for layer in range(LAYERS):
            counter.wait_until(layer)
            setup.pool_device._get_key_buffer(layer)
    assert run.sink.of(Finding) == []
    said = run.attachment.observer.registry.inventory.unrecognised
    assert "LayerLoadingEvent.complete: takes (layer)" in said


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
    assert not any(load.sender for load in gates.current.values())
    assert not gates.on_way
    assert not any("complete" in vars(events) for events in owner.layer_done_counter.events)


def test_a_load_that_failed_accuses_nobody_once_another_has_begun(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread submits the other one's layers: nobody can tell how far it came."""
    run, setup, owner = prepared(traced)

    def amid(_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch, suppress(MemoryError):
        patch.setattr(CacheOperation, "merge_ops", amid)
        owner.start_loading()
    owner.start_loading()
    for layer in range(LAYERS):
        setup.pool_device._get_key_buffer(layer)
    assert run.sink.of(Finding) == []


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
    assert [load for load in gates.current.values() if load.sender] == [gates.here.loading]


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


def test_a_load_that_somebody_looks_at_stays_as_it_is(traced: Start) -> None:
    """The set's next load is another one; the compiled helper reuses only what nobody holds."""
    run, setup, owner = prepared(traced)
    gates = run.attachment.observer.gates
    held = list(gates.current.values())
    for load in held:
        load.wait(7, 0)
    for _ in range(2 * len(held)):
        owner.load_queue[:] = [operation(indices([PAGE], setup.page), indices([3], setup.page))]
        owner.start_loading()
    assert [load.passed for load in held] == [{7: 0}] * len(held)
    assert [load.passed for load in gates.current.values()] == [{}] * len(held)
    assert not {id(load) for load in held} & {id(load) for load in gates.current.values()}
