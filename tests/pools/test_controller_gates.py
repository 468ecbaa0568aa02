"""Gates and failures: no layer is passed early, and no failed copy counts as done."""

from collections.abc import Callable, Iterator
from threading import Event

import pytest
from tests.pools.caching import (
    LAYERS,
    P,
    Tokens,
    accounted,
    group_of,
    sequences,
    turn,
    write,
    wrong_pages,
)

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.transfer import CopyOp, TransferEngine, TransferError


class GatedEngine(TransferEngine):
    """An engine that lets a test hold a load before each layer, and make operations fail."""

    def __init__(self) -> None:
        self.permits: dict[int, Event] = {}
        self.permit_end = Event()
        self.permit_end.set()
        self.fail: Callable[[CopyOp], bool] = lambda _: False
        self.fail_after: int | None = None

    def backup(self, op: CopyOp) -> None:
        """Move bytes, then fail if asked to: the bytes are copied but must not count."""
        super().backup(op)
        if self.fail(op):
            op.status = "failed"
            raise OSError(f"no bytes for op {op.op_id}")

    def load(self, op: CopyOp, on_layer_done: Callable[[int], None]) -> None:
        """Report a layer only once the test permits it."""

        def done(layer: int) -> None:
            if layer in self.permits:
                assert self.permits[layer].wait(30)
            if self.fail(op) and layer == self.fail_after:
                op.status = "failed"
                raise OSError(f"link down in layer {layer}")
            on_layer_done(layer)

        super().load(op, done)
        assert self.permit_end.wait(30)


@pytest.fixture
def engine() -> GatedEngine:
    """An engine that the test controls."""
    return GatedEngine()


@pytest.fixture
def cached_on_host(engine: GatedEngine) -> Iterator[tuple[HiCacheController, Tokens]]:
    """A controller whose first sequence is on the host only."""
    controller = HiCacheController(group_of(device_pages=6), engine=engine)
    tokens, other = sequences([[1, 1, 1, 1], [2, 2, 2, 2, 2, 2]])
    for item in (tokens, other):
        turn(controller, item)
        controller.flush()
    yield controller, tokens
    engine.fail = lambda _: False
    controller.close()


def test_no_layer_is_passed_before_it_is_there(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """A reader passes a gate after its layer has arrived and before the next one has."""
    controller, tokens = cached_on_host
    engine.permits = {layer: Event() for layer in range(LAYERS)}
    match = controller.match(tokens)
    ticket = controller.load_back(match)
    with pytest.raises(TimeoutError, match="layer 0 did not arrive"):
        controller.wait_layer(0, ticket, timeout=0.01)
    engine.permits[0].set()
    controller.wait_layer(0, ticket)
    with pytest.raises(TimeoutError, match=r"layer 1 did not arrive.*last to arrive was 0"):
        controller.wait_layer(1, ticket, timeout=0.01)
    with pytest.raises(ValueError, match="4 of which are still being loaded"):
        controller.insert(tokens, ticket.device_pages)
    engine.permits[1].set()
    engine.permits[2].set()
    controller.wait_layer(LAYERS - 1, ticket)
    assert ticket.done
    controller.unlock(match)
    controller.flush()
    accounted(controller)


def test_the_last_gate_opens_with_the_whole_operation(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """A reader that passed the last gate may insert: the load is complete in every respect."""
    controller, tokens = cached_on_host
    engine.permit_end.clear()
    match = controller.match(tokens)
    ticket = controller.load_back(match)
    controller.wait_layer(LAYERS - 2, ticket)
    with pytest.raises(TimeoutError, match=f"layer {LAYERS - 1} did not arrive"):
        controller.wait_layer(LAYERS - 1, ticket, timeout=0.05)
    engine.permit_end.set()
    controller.wait_layer(LAYERS - 1, ticket)
    assert controller.insert(tokens, ticket.device_pages).duplicate_device_pages.size == 0
    controller.unlock(match)


def test_loaded_pages_the_tree_does_not_take_live_as_long_as_their_reader(
    engine: GatedEngine,
) -> None:
    """A reader keeps its loaded pages when another inserts the same tokens first, then frees them."""
    controller = HiCacheController(group_of(device_pages=12), engine=engine)
    tokens, other = sequences([[1, 1, 1, 1], [2] * 12])
    for item in (tokens, other):
        turn(controller, item)
        controller.flush()
    engine.permits = {0: Event()}
    match = controller.match(tokens)
    ticket = controller.load_back(match)
    computed = controller.alloc_device(4)
    write(controller.group, tokens, computed)
    controller.insert(tokens, computed)
    engine.permits[0].set()
    controller.wait_layer(LAYERS - 1, ticket)
    device = controller.allocators["device"]
    assert device.taken(ticket.device_pages).all()
    assert wrong_pages(controller.group, tokens, ticket.device_pages, 0) == []
    duplicates = controller.insert(tokens, ticket.device_pages).duplicate_device_pages
    assert duplicates.tolist() == ticket.device_pages.tolist()
    assert device.taken(ticket.device_pages).all()
    controller.unlock(match)
    assert not device.taken(ticket.device_pages).any()
    controller.flush()
    accounted(controller)
    controller.close()


def test_a_page_being_loaded_is_shared_not_loaded_twice(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """A second reader of the same host pages waits for the first one's load."""
    controller, tokens = cached_on_host
    engine.permits = {0: Event()}
    matches = [controller.match(tokens), controller.match(tokens[: 2 * P])]
    tickets = [controller.load_back(match) for match in matches]
    assert tickets[0].device_pages[:2].tolist() == tickets[1].device_pages.tolist()
    controller.unlock(matches[0])  # the first reader gives up; the second still reads
    engine.permits[0].set()
    controller.wait_layer(LAYERS - 1, tickets[1])
    assert wrong_pages(controller.group, tokens, tickets[1].device_pages, 0) == []
    controller.unlock(matches[1])
    controller.flush()
    assert controller.stats.loads == 1
    accounted(controller)


def test_a_failed_load_reaches_every_reader_and_the_pages_stay_on_the_host(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """An error in the middle of a load closes all its gates, and a retry succeeds."""
    controller, tokens = cached_on_host
    engine.fail, engine.fail_after = (lambda op: op.kind == "load"), 1
    engine.permits = {0: Event()}
    matches = [controller.match(tokens), controller.match(tokens)]
    tickets = [controller.load_back(match) for match in matches]
    engine.permits[0].set()
    for ticket in tickets:
        with pytest.raises(
            TransferError, match=r"load \d+ of 4 pages failed: link down in layer 1"
        ):
            controller.wait_layer(LAYERS - 1, ticket)
        with pytest.raises(TransferError, match="link down"):
            controller.wait_layer(0, ticket)
    for match in matches:
        controller.unlock(match)
    with pytest.raises(
        TransferError, match=r"failed copies: \d+, first load \d+ of 4 pages: link down"
    ):
        controller.flush()
    accounted(controller)
    assert controller.stats.failed_loads >= 1
    engine.fail = lambda _: False
    turn(controller, tokens)
    controller.flush()
    assert controller.stats.loads == 1


def test_a_load_that_builds_on_a_failed_one_fails_too(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """Pages after a failed prefix are not inserted as if the prefix existed."""
    controller, tokens = cached_on_host
    engine.permits = {0: Event()}
    engine.fail, engine.fail_after = (lambda op: op.host_generations.size == 2), 1
    matches = [controller.match(tokens[: 2 * P]), controller.match(tokens)]
    tickets = [controller.load_back(match) for match in matches]
    assert len(tickets[1].loads) == 2
    engine.permits[0].set()
    engine.fail = lambda op: op.op_id == tickets[0].loads[0].op_id
    with pytest.raises(TransferError, match="link down"):
        controller.wait_layer(LAYERS - 1, tickets[1])
    for match in matches:
        controller.unlock(match)
    with pytest.raises(TransferError, match="failed copies: 2"):
        controller.flush()
    accounted(controller)


def test_a_failed_backup_is_reported_and_leaves_no_host_copy(engine: GatedEngine) -> None:
    """A failed backup never counts as done, even if its bytes were copied."""
    (tokens,) = sequences([[1, 2, 3]])
    engine.fail = lambda op: op.kind == "backup"
    controller = HiCacheController(group_of(), engine=engine)
    turn(controller, tokens)
    with pytest.raises(
        TransferError, match=r"failed copies: 1, first backup 1 of 3 pages: no bytes"
    ):
        controller.flush()
    assert controller.tree.stats.host_pages == 0
    assert controller.stats.failed_backups == 1
    accounted(controller)
    controller.close()


def test_close_raises_what_nobody_was_told_of(engine: GatedEngine) -> None:
    """An error that nobody waited for is raised at close, once."""
    (tokens,) = sequences([[1]])
    engine.fail = lambda _: True
    controller = HiCacheController(group_of(), engine=engine)
    turn(controller, tokens)
    with pytest.raises(TransferError, match="no bytes"):
        controller.close()


def test_a_body_that_raises_keeps_its_own_error(engine: GatedEngine) -> None:
    """A failed copy does not hide the error that ended the block; it becomes a note on it."""
    (tokens,) = sequences([[1]])
    engine.fail = lambda _: True

    def body() -> None:
        with HiCacheController(group_of(), engine=engine) as controller:
            turn(controller, tokens)
            raise KeyError("the body's own")

    with pytest.raises(KeyError) as caught:
        body()
    assert "no bytes" in caught.value.__notes__[0]


def test_pages_of_an_open_copy_cannot_be_freed(
    cached_on_host: tuple[HiCacheController, Tokens], engine: GatedEngine
) -> None:
    """While a load is open its pages have readers at both ends."""
    controller, tokens = cached_on_host
    engine.permits = {0: Event()}
    match = controller.match(tokens)
    ticket = controller.load_back(match)
    load = ticket.loads[0]
    assert controller.allocators["host"].readers(load.host).tolist() == [1] * 4
    assert controller.allocators["device"].readers(load.device).tolist() == [1] * 4
    engine.permits[0].set()
    controller.wait_layer(LAYERS - 1, ticket)
    controller.unlock(match)
