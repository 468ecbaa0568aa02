"""Gates of layers as a state machine: what was waited for against what is read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.gates import Loading
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import FaultClass

LAYERS = 6
READER, OTHER = 100, 200
BY = Access("load 1", "stream 3")
HERE = Access("reader", "stream 7")

#: An event in the life of a load: a gate opens, a reader waits.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "wait"]),
        st.integers(0, LAYERS - 1),
        st.sampled_from([READER, OTHER]),
    ),
    max_size=20,
)


def loading() -> Loading:
    """Return a load of two pages of one pool."""
    one = Loading(LAYERS, BY)
    one.moves("kv", np.array([7, 9]))
    return one


@given(steps=STEPS, layer=st.integers(0, LAYERS - 1))
def test_a_reader_is_in_order_if_a_gate_it_waited_for_was_open_by_then(
    steps: list[tuple[str, int, int]], layer: int
) -> None:
    """Against a model that keeps, for each wait, the layers behind open gates at that moment."""
    one, opened, ordered = loading(), -1, set[int]()
    for what, number, reader in steps:
        if what == "open":
            one.open(number)
            opened = max(opened, number)
        else:
            one.wait(reader, number)
            if reader == READER:
                ordered |= set(range(min(number, opened) + 1))
    found = one.read(READER, layer, "kv", HERE)
    assert bool(found) == (layer not in ordered)
    if found:
        assert found[0].cls is FaultClass.READ_BEFORE_LOAD
        assert (found[0].pages, found[0].layers) == ((7, 9), (layer,))


def test_a_wait_for_a_gate_that_nobody_opened_orders_nothing() -> None:
    """Waiting for an event that was never recorded returns at once and orders nothing."""
    one = loading()
    one.wait(READER, 3)
    one.open(3)
    (violation,) = one.read(READER, 3, "kv", HERE)
    assert violation.got == "no wait"


@given(
    pages=st.lists(st.integers(-1, 3), max_size=4, unique=True),
    moved=st.lists(st.lists(st.integers(-1, 3), max_size=3), max_size=3),
    waited=st.integers(-1, LAYERS - 2),
)
def test_pages_that_the_load_does_not_write_may_be_read(
    pages: list[int], moved: list[list[int]], waited: int
) -> None:
    """A copy is accused of exactly the pages still being loaded, in the missing layers."""
    one = Loading(LAYERS, BY)
    for part in moved:
        one.moves("kv", np.array(part, np.int64))
    for layer in range(waited + 1):
        one.open(layer)
        one.wait(READER, layer)
    found = one.touch({"kv": np.array(pages, np.int64)}, HERE)
    both = tuple(sorted({page for part in moved for page in part if page >= 0} & set(pages)))
    missing = tuple(range(waited + 1, LAYERS))
    told = [(violation.pages, violation.layers) for violation in found]
    assert told == ([(both, missing)] if both else [])


def test_a_load_that_was_waited_for_to_its_end_accuses_nobody() -> None:
    """The last gate orders everything after it."""
    one = loading()
    one.open(LAYERS - 1)
    one.wait(READER, LAYERS - 1)
    assert one.touch({"kv": np.array([7])}, HERE) == []
    assert one.read(READER, 0, "kv", HERE) == []


def test_a_read_of_a_pool_whose_copy_has_not_begun_names_no_page() -> None:
    """The pools' copies start one by one; until then the load's pages of a pool are unknown."""
    (violation,) = loading().read(READER, 0, "index_k", HERE)
    assert (violation.pages, violation.pool) == ((), "index_k")


def test_the_report_has_both_accesses_and_what_was_waited_for() -> None:
    """One line has the load, the reader, how far it waited, and how far the load had come."""
    one = loading()
    one.open(0)
    one.wait(READER, 0)
    (violation,) = one.read(READER, 2, "kv", HERE)
    assert str(violation) == (
        "device pages 7, 9, layer 2: read while a load writes it and nothing orders the two (layer 0 "
        "sent off, 6 to come in all) (expected a wait for layer 2, got a wait for layer 0); this access: "
        "reader on stream 7; previous access: load 1 on stream 3; allocated: unknown, tracing began later"
    )
