"""Operations whose ends are on a GPU, on a CPU: enqueued during the call, read and judged afterwards."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import time
from typing import Any, cast

import pytest
import released_base
import released_driving
import released_rows
import torch
from released_base import LAYERS, Case
from released_cases import CASES
from released_driving import backup, indices, load
from released_lane import HostMark, beside
from released_pages import index_k, v4
from released_rows import mha_of_sglang, mla
from released_streams import Event, device_events
from released_traced import Start

from hicache_dbg.tracer.attach.sglang import gpu, gpu_calls, gpu_plans
from hicache_dbg.tracer.attach.sglang.gpu_calls import DeviceCalls
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op
from hicache_dbg.tracer.settings import Checksum

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_clean_round_trip_is_verified_tile_by_tile(traced: Start, case: Case) -> None:
    """As where digests are taken during the call: each tile verified, one event an operation."""
    run = traced(checksum=Checksum.LOADS)
    setup = case.build(case.layout)
    beside(run, setup)
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), case.io_backend)
    load(setup, host, indices(TO, setup.page), case.io_backend)
    assert run.sink.of(Finding) == []
    tiles = len(HOST) * LAYERS * case.components
    assert [(event.op, event.witnessed, event.verified) for event in run.sink.of(Copied)] == [
        (Op.BACKUP, tiles, 0),
        (Op.LOAD, 0, tiles),
    ]


def test_a_flipped_byte_on_the_host_is_found(traced: Start) -> None:
    """One changed byte between backup and load is one mismatched tile: its own."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("page_first")
    beside(run, setup)
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), "kernel")
    setup.pool.kv_buffer.view(torch.uint8)[HOST[2] * setup.page, 1, 0, 5] ^= 0xFF
    load(setup, host, indices(TO, setup.page), "kernel")
    (finding,) = run.sink.of(Finding)
    assert (finding.layer, finding.pages) == (1, (HOST[2],))
    assert run.sink.of(Copied)[-1].mismatched == 1


def test_a_load_is_digested_once_for_all_its_layers(traced: Start) -> None:
    """One launch a component and operation, whatever the number of layers."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), "kernel")
    load(setup, host, indices(TO, setup.page), "kernel")
    assert [[(p.first, p.last) for p in work.parts] for work in lane.begun] == [[(0, LAYERS)]] * 2


def test_the_event_of_an_operations_end_comes_after_its_digests(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang gives pages away when its event has come: it is recorded again, behind the digests."""
    device_events(monkeypatch)
    monkeypatch.setattr(Event, "cuda_event", 77, raising=False)
    run = traced(checksum=Checksum.LOADS)
    setup = mha_of_sglang("layer_first")
    lane = beside(run, setup)
    host = indices(HOST, setup.page)
    for move, pages in ((backup, FROM), (load, TO)):
        lane.recorded.clear()
        move(setup, host, indices(pages, setup.page), "kernel")
        assert run.sink.of(Copied)  # by now
        assert lane.recorded[-1] == (77, 0)  # behind all that is ours
        assert len(lane.begun[-1].parts) == 2  # of K and of V
    assert run.sink.of(Copied)[-1].verified == 2 * LAYERS * len(HOST)


@pytest.mark.parametrize("at_once", [True, False])
def test_large_digests_run_beside_the_copies_in_order_with_sglangs_events(
    traced: Start, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A backup's wait for the event of its begin, a load's for its end; either way the end comes behind them."""
    device_events(monkeypatch)
    monkeypatch.setattr(Event, "cuda_event", property(id), raising=False)
    for module in (gpu, gpu_plans):
        for limit in ("IN_LINE_BYTES", "LARGE_BYTES"):
            monkeypatch.setattr(module, limit, 0)
    run = traced(checksum=Checksum.LOADS)
    setup = mha_of_sglang("layer_first")
    lane = beside(run, setup, at_once=at_once)
    if at_once:
        monkeypatch.delattr(gpu.Lane, "conclude")
    host = indices(HOST, setup.page)
    for move, pages, waits in ((backup, FROM, 2), (load, TO, 1)):
        for noted in (lane.recorded, lane.waited, lane.order.held):
            noted.clear()
        move(setup, host, indices(pages, setup.page), "kernel")
        assert run.sink.of(Copied)
        assert len(set(lane.waited)) == waits
        end, stream = lane.recorded[-1]
        assert stream == 1  # the one beside
        assert lane.waited[-1] == end  # behind the copies as well
        assert lane.order.held == []  # no copy waits
    assert run.sink.of(Copied)[-1].verified == 2 * LAYERS * len(HOST)
    known = run.attachment.observer.devices.by_pool[id(setup.pool)]
    launched = [cast("Any", whole).launched for _, whole in known.whole]
    assert launched == [{"sparing": 1, "every": 1}] * 2 * at_once


@pytest.mark.parametrize("sure", [True, False])
def test_the_layers_behind_the_first_go_straight_to_sglang(
    traced: Start, monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """Of six layers' calls one is looked at, all six are verified, and the pool is as it was."""
    for module in (released_base, released_rows, released_driving):
        monkeypatch.setattr(module, "LAYERS", 6)
    if not sure:
        monkeypatch.setattr(gpu_calls, "layers_brought", lambda *_: 0)
    looked: list[int] = []
    whole = DeviceCalls._load

    def looking(self: DeviceCalls, *call: Any) -> Any:
        looked.append(len(call))
        return whole(self, *call)

    monkeypatch.setattr(DeviceCalls, "_load", looking)
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    host, own = indices(HOST, setup.page), set(vars(setup.pool))
    backup(setup, host, indices(FROM, setup.page), "kernel")
    load(setup, host, indices(TO, setup.page), "kernel")
    assert len(looked) == 1
    event = run.sink.of(Copied)[-1]
    assert (event.layers, event.verified, event.mismatched) == (6, 6 * len(HOST), 0)
    assert [(part.first, part.last) for part in lane.begun[-1].parts] == [(0, 6)]
    assert set(vars(setup.pool)) == own


def test_a_load_of_other_pages_within_the_same_operation_is_another(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a pool comes twice in one operation, each of its loads is verified by itself."""
    monkeypatch.setattr(gpu_calls, "layers_brought", lambda *_: 0)
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    host, other = indices([5, 0], setup.page), indices([7], setup.page)
    backup(setup, host, indices([1, 4], setup.page), "kernel")
    backup(setup, other, indices([2], setup.page), "kernel")
    session = run.attachment.observer.session()
    assert session is not None
    pool, to = setup.pool, indices([0, 3, 5], setup.page)
    first, second = to[: 2 * setup.page], to[2 * setup.page :]
    frame = run.attachment.observer.frames.begin(session.probe)
    for layer in range(LAYERS):
        for source, target in ((host, first), (other, second)):
            pool.load_to_device_per_layer(setup.pool_device, source, target, layer, "kernel")
    run.attachment.observer.frames.end(frame)
    loads = run.sink.of(Copied)[2:]
    assert [(load.pages, load.verified) for load in loads] == [(2, 2 * LAYERS), (1, LAYERS)]
    assert run.sink.of(Finding) == []


@pytest.mark.parametrize("ms", [0.0005, 3_600_000.0])
def test_an_operation_takes_as_long_as_the_device_says(
    traced: Start, monkeypatch: pytest.MonkeyPatch, ms: float
) -> None:
    """Its duration is the time between its events; it ends no earlier than its call, and the device, can."""
    monkeypatch.setattr(HostMark, "ms", ms)
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    host, before = indices(HOST, setup.page), time.time_ns()
    backup(setup, host, indices(FROM, setup.page), "kernel")
    load(setup, host, indices(TO, setup.page), "kernel")
    after = time.time_ns()
    events = run.sink.of(Copied)
    assert len(events) == 2
    for event in events:
        assert event.duration_us == pytest.approx(ms * 1e3)
        began = event.time_ns - ms * 1e6
        assert before <= round(began) + 1000
        assert began <= after


def test_an_end_that_was_never_marked_leaves_the_hosts_clock(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that stops at its first layer took what its calls took."""
    monkeypatch.setattr(HostMark, "ms", 3_600_000.0)
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)

    def fail(layer: int) -> None:
        raise RuntimeError(f"stop at {layer}")

    # 0.5.23 then asks torch's stream on a CPU for what only others have.
    with pytest.raises((RuntimeError, AttributeError), match=r"stop at 0|synchronize"):
        load(setup, indices(HOST, setup.page), indices(TO, setup.page), "kernel", fail)
    (event,) = run.sink.of(Copied)
    assert 0 < event.duration_us < 60e6


def test_nothing_is_read_before_the_device_is_done(traced: Start) -> None:
    """The record waits in the ring as long as its event has not come; what follows waits behind it."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    lane.over = False
    backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
    session = run.attachment.observer.session()
    assert session is not None
    assert session.bus.flush(0.1) is False
    lane.begun[0].come()
    assert [event.op for event in run.sink.of(Copied)] == [Op.BACKUP]


def test_pages_that_are_given_away_before_they_are_read_keep_their_generation(
    traced: Start,
) -> None:
    """What was digested is filed under the page as it was when the copy began, and verifies nothing later."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    host = setup.pool.alloc(setup.page)
    lane.over = False
    backup(setup, host, indices([1], setup.page), "kernel")
    setup.pool.free(host)
    while not (again := setup.pool.alloc(setup.page)).equal(host):
        pass
    lane.over = True
    lane.begun[0].come()
    load(setup, again, indices([2], setup.page), "kernel")
    event = run.sink.of(Copied)[-1]
    assert (event.verified, event.mismatched, event.skipped) == (0, 0, {"reused": LAYERS})


def test_single_slots_are_partial_and_64_of_them_are_found(traced: Start) -> None:
    """Slots that are no pages are not digested; as many as make up pages are an index_space."""
    run = traced(checksum=Checksum.LOADS)
    setup = v4("dsv4_hisparse_c4", 37440, 64)("layer_first")
    beside(run, setup)
    for count in (3, 64):
        host, device = (torch.randperm(7 * 64)[:count] for _ in range(2))
        setup.pool.backup_from_device_all_layer(None, host, device, "kernel")
    events = run.sink.of(Copied)
    assert (events[0].token_granular, events[0].skipped) == (
        True,
        {"partial": LAYERS * events[0].pages},
    )
    assert [finding.cls for finding in run.sink.of(Finding)] == [FaultClass.INDEX_SPACE]


def test_a_call_that_stands_alone_keeps_its_indices(traced: Start) -> None:
    """Whoever calls a pool directly may write its indices afterwards: what is read is what was given."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    lane.over = False
    host, device = indices([5], setup.page), indices([1], setup.page)
    setup.pool.backup_from_device_all_layer(setup.pool_device, host, device, "kernel")
    host.zero_()
    device.zero_()
    lane.begun[0].come()
    (event,) = run.sink.of(Copied)
    assert (event.host_pages, event.device_pages) == ((5,), (1,))


def test_nothing_is_enqueued_while_a_graph_is_captured(traced: Start) -> None:
    """A capture would take our work into the graph: the copy is a line, and the device is left alone."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    lane = beside(run, setup)
    lane.graph = True
    backup(setup, indices([5], setup.page), indices([1], setup.page), "kernel")
    assert lane.begun == []
    assert [event.op for event in run.sink.of(Copied)] == [Op.BACKUP]


def test_a_call_that_fails_has_its_status(traced: Start) -> None:
    """SGLang's own error goes on to it; the operation is an event that says so, and counts for nothing."""
    run = traced(checksum=Checksum.LOADS)
    setup = index_k("layer_first")
    beside(run, setup)
    ids = torch.arange(3)
    with pytest.raises(ValueError, match=r".+"):
        setup.pool.backup_from_device_all_layer(setup.pool_device, ids, ids, "kernel")
    (event,) = run.sink.of(Copied)
    assert event.status.startswith("ValueError")
    assert (event.verified, event.witnessed) == (0, 0)


def _refuse(*_: object) -> None:
    """Fail like a driver that refuses a call."""
    raise RuntimeError("the driver refused")


def test_digests_whose_end_is_not_marked_are_not_read(
    traced: Start, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """They may be under way still: the tiles are unwitnessed, and nobody else is given their memory."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("page_first")
    lane, returned = beside(run, setup), list[object]()
    monkeypatch.setattr(lane, "give_back", lambda slot, _: returned.append(slot))
    monkeypatch.setattr(lane, "raw_record", _refuse)
    monkeypatch.setattr(lane, "mark", lambda _: HostMark())
    backup(setup, indices(HOST, setup.page), indices(FROM, setup.page), "kernel")
    (event,) = run.sink.of(Copied)
    assert (event.witnessed, event.skipped) == (0, {"unwitnessed": len(HOST) * LAYERS})
    assert not any(returned)
    assert internal_errors == ["digest/device: RuntimeError: the driver refused"]
    internal_errors.clear()


def test_an_operation_that_cannot_be_read_is_no_longer_under_way(
    traced: Start, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """What is handed out is remembered only while an operation is under way."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("page_first")
    monkeypatch.setattr(beside(run, setup), "read", _refuse)
    backup(setup, indices(HOST, setup.page), indices(FROM, setup.page), "kernel")
    assert run.sink.of(Copied) == []
    history = run.attachment.observer.devices.history
    before = history.now
    history.note(run.record(setup.pool).sources[0], torch.tensor([0]))
    assert history.now == before
    assert internal_errors == ["bus: RuntimeError: the driver refused"]
    internal_errors.clear()


def test_a_copy_that_cannot_be_told_takes_no_other_with_it(
    traced: Start, monkeypatch: pytest.MonkeyPatch, internal_errors: list[str]
) -> None:
    """Of two copies of an operation the second is an event, and neither stays under way."""
    run = traced(checksum=Checksum.LOADS)
    setup = mla("layer_first")
    beside(run, setup)
    observer = run.attachment.observer
    session, told = observer.session(), list[object]()
    assert session is not None
    whole = DeviceCalls.moved_over

    def failing(self: DeviceCalls, op: Any) -> None:
        told.append(op)
        if len(told) == 1:
            _refuse()
        whole(self, op)

    monkeypatch.setattr(DeviceCalls, "moved_over", failing)
    frame = observer.frames.begin(session.probe)
    for host, device in ((5, 1), (0, 4)):
        ends = indices([host], setup.page), indices([device], setup.page)
        setup.pool.backup_from_device_all_layer(setup.pool_device, *ends, "kernel")
    observer.frames.end(frame)
    assert [event.host_pages for event in run.sink.of(Copied)] == [(0,)]
    history = observer.devices.history
    before = history.now
    history.note(run.record(setup.pool).sources[0], torch.tensor([0]))
    assert history.now == before
    assert internal_errors == ["digest/device: RuntimeError: the driver refused"]
    internal_errors.clear()
