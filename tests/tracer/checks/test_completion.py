"""Completion, components and anchors: what an operation promised against what it did."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.anchor import strays
from hicache_dbg.tracer.checks.completion import Completion, OpId
from hicache_dbg.tracer.checks.components import Components
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import FaultClass

OP = OpId(7)


def by(what: str) -> Access:
    """Return an access by an arbitrary thread."""
    return Access(what, "thread")


def numbers(*values: int) -> np.ndarray:
    """An int64 array."""
    return np.array(values, np.int64)


def promised(pages: tuple[int, ...] = (8, 9), layers: tuple[int, ...] = (0, 1)) -> Completion:
    """Return a book with one load under way."""
    book = Completion()
    book.promise(OP, "device", numbers(*pages), frozenset(layers), by("load 7"), number=7)
    return book


def delivered(book: Completion, layers: tuple[int, ...] = (0, 1)) -> None:
    """Deliver everything that the load owes."""
    assert book.begun(OP, {"kv": numbers(8, 9)}, by("copy")) == []
    for layer in layers:
        book.layers_arrived(OP, [layer])
        assert book.gate(OP, layer, by("gate")) == []


def test_a_load_that_keeps_its_word_is_clean() -> None:
    """Delivered, done, and reported as done; afterwards it is unknown."""
    book = promised()
    delivered(book)
    book.end(OP, "done", by("return"))
    assert book.report(OP, by("report"), good=True) == []
    assert book.outstanding([OP], by("close")) == []


def test_an_error_that_advances_the_counter_is_found() -> None:
    """Entry 59: the load into slot 4 fails and is still marked as loaded."""
    book = promised(pages=(4,))
    book.end(OP, "failed: OSError", by("return"))
    (found,) = book.report(OP, by("report"), good=True)
    assert (found.cls, found.pages, found.expected, found.got) == (
        FaultClass.FAILED_LOAD,
        (4,),
        "done",
        "failed: OSError",
    )


def test_a_failed_retrieve_reported_as_failed_is_clean() -> None:
    """Entry 60, the correct case: blocks 8 and 9 failed, and their reader is told so."""
    book = promised()
    book.end(OP, "failed: False", by("return"))
    assert book.report(OP, by("report"), good=False) == []


def test_a_false_result_reported_as_finished_is_found() -> None:
    """Entry 60: retrieve of {8, 9} returns False and is reported as finished: both are invalid."""
    book = promised()
    assert book.begun(OP, {"kv": numbers(8, 9)}, by("copy")) == []
    book.end(OP, "failed", by("return"))
    (found,) = book.report(OP, by("report"), good=True)
    assert (found.cls, found.pages) == (FaultClass.FAILED_LOAD, (8, 9))


def test_posted_and_promised_writes_are_compared() -> None:
    """Entry 64: 4 writes expected, 3 posted: the fourth is named when the copy begins, and at the end."""
    book = promised(pages=(1, 2, 3, 4))
    (early,) = book.begun(OP, {"kv": numbers(1, 2, 3)}, by("copy"))
    assert (early.cls, early.pages) == (FaultClass.FAILED_LOAD, (4,))
    book.layers_arrived(OP, [0])
    book.layers_arrived(OP, [1])
    book.end(OP, "done", by("return"))
    (found,) = book.report(OP, by("report"), good=True)
    assert (found.cls, found.pages, found.expected, found.got) == (
        FaultClass.FAILED_LOAD,
        (4,),
        "4 pages of kv",
        "3",
    )


def test_a_missing_layer_is_found() -> None:
    """The load is done although one of the promised layers never arrived."""
    book = promised(layers=(0, 1, 2))
    delivered(book)
    book.end(OP, "done", by("return"))
    (found,) = book.report(OP, by("report"), good=True)
    assert (found.cls, found.expected, found.got) == (
        FaultClass.FAILED_LOAD,
        "3 layers",
        "no layer 2",
    )


def test_one_getter_that_does_not_wait_is_found() -> None:
    """Entry 40: the gate of layer 2 is passed while the load's counter stands at 1."""
    book = promised(layers=(0, 1, 2))
    book.layers_arrived(OP, [0])
    assert book.gate(OP, 0, by("get_key")) == []
    (found,) = book.gate(OP, 2, by("get_value"))
    assert (found.cls, found.expected, found.got) == (
        FaultClass.READ_BEFORE_LOAD,
        "layer 2 arrived",
        "layer 0",
    )


def test_a_gate_opened_after_a_failure_is_a_false_report() -> None:
    """Opening a gate after the copy failed is a false report, not an early read."""
    book = promised()
    book.layers_arrived(OP, [0])
    book.end(OP, "failed: link down", by("return"))
    (found,) = book.gate(OP, 1, by("gate"))
    assert (found.cls, found.got) == (FaultClass.FAILED_LOAD, "failed: link down")


def test_an_operation_that_never_ends_is_found_at_close() -> None:
    """Entry 48: an operation lost by its worker has no status and is reported."""
    book = promised(pages=(1,))
    (found,) = book.outstanding([OP], by("close"))
    assert (found.cls, found.pages, found.got) == (FaultClass.FAILED_LOAD, (1,), "none")
    assert found.previous == by("load 7")


@given(
    pages=st.sets(st.integers(0, 30), min_size=1),
    done=st.sets(st.integers(0, 30)),
    status=st.sampled_from(["done", "failed"]),
    good=st.booleans(),
)
def test_only_a_false_report_of_success_is_a_finding(
    pages: set[int], done: set[int], status: str, good: bool
) -> None:
    """There is a finding exactly if success is claimed and status or pages contradict it."""
    book = promised(tuple(sorted(pages)), ())
    early = book.begun(OP, {"kv": numbers(*done)}, by("copy"))
    assert {page for item in early for page in item.pages} == pages - done
    book.end(OP, status, by("return"))
    found = book.report(OP, by("report"), good=good)
    assert bool(found) == (good and (status != "done" or not pages <= done))


def test_components_of_different_lives_are_found() -> None:
    """Entry 30: two pages reloaded, kv of generation 2, index of generation 1."""
    book = Components("host", 8, ("kv", "index"))
    book.arrived("kv", numbers(3, 4), numbers(2, 2))
    book.arrived("index", numbers(3, 4), numbers(1, 1))
    (found,) = book.agree(numbers(3, 4), numbers(2, 2), by("load"))
    assert (found.cls, found.pool, found.pages) == (FaultClass.SIDECAR_MISSING, "index", (3, 4))
    assert (found.expected, found.got) == ("generation 2", "generation 1")
    book.arrived("index", numbers(3, 4), numbers(2, 2))
    assert book.agree(numbers(3, 4), numbers(2, 2), by("load")) == []


def test_an_index_that_outlives_its_bytes_is_found() -> None:
    """Entry 74: b3 was written in generation 1, freed, and has a new owner: the old hash is stale."""
    book = Components("host", 8, ("kv", "index"))
    for name in book.names:
        book.arrived(name, numbers(3), numbers(1))
    assert book.present(numbers(3), numbers(1), by("load")) == []
    (found,) = book.present(numbers(3), numbers(2), by("load"))
    assert (found.cls, found.pages, found.got) == (
        FaultClass.STALE_INDEX,
        (3,),
        "bytes of generation 1",
    )
    assert book.present(numbers(5), numbers(7), by("load")) == []  # never seen: tracing began later


def test_the_state_of_another_prefix_is_found() -> None:
    """Entry 110: A, B, A: the recurrent state is B's when A comes back; A, A alone proves nothing."""
    book = Components("host", 4, ("kv", "state"))
    for name in book.names:
        book.arrived(name, numbers(0), numbers(1))  # A
    assert book.agree(numbers(0), numbers(1), by("load A")) == []
    book.arrived("state", numbers(0), numbers(2))  # B has the state's page
    (found,) = book.agree(numbers(0), numbers(1), by("load A"))
    assert (found.cls, found.pool) == (FaultClass.SIDECAR_MISSING, "state")


def test_a_restored_set_that_lacks_a_pool_is_found() -> None:
    """Entry 28: of kv, indexer, draft and draft_indexer the last is not restored; no output shows it."""
    names = ("kv", "indexer", "draft", "draft_indexer")
    book = Components("device", 8, names)
    (found,) = book.moved(names[:3], numbers(1), by("load"))
    assert (found.cls, found.pool) == (FaultClass.SIDECAR_MISSING, "draft_indexer")
    assert book.moved(names, numbers(1), by("load")) == []


def test_the_usable_prefix_is_what_every_group_has() -> None:
    """Entry 33: attention hits 4 pages, recurrent state 1: pages 1..3 lack their state."""
    book = Components("host", 4, ("attention", "recurrent"))
    book.arrived("attention", numbers(0, 1, 2, 3), numbers(1, 1, 1, 1))
    book.arrived("recurrent", numbers(0), numbers(1))
    (found,) = book.agree(numbers(0, 1, 2, 3), numbers(1, 1, 1, 1), by("load"))
    assert (found.pool, found.pages, found.got) == ("recurrent", (1, 2, 3), "never written")


def test_pages_from_before_tracing_are_left_alone() -> None:
    """If no component of a page was seen, that is a late attachment, not a missing sidecar."""
    book = Components("host", 8, ("kv", "index"))
    assert book.agree(numbers(5), numbers(9), by("load")) == []


def test_one_translation_for_two_index_spaces_is_found() -> None:
    """Entry 24: dcp 4, logical slot 9 is main slot 2; index-K given the main pool's 2 reads wrong rows."""
    asked = numbers(9), numbers(9)
    assert strays("index_k", asked, (numbers(9), numbers(9)), by("load")) == []
    (found,) = strays("index_k", asked, (numbers(2), numbers(9)), by("load"))
    assert (found.cls, found.pool, found.pages) == (FaultClass.INDEX_SPACE, "index_k", (2,))


def test_steps_of_another_page_size_are_found() -> None:
    """Entry 21: pages begin at 0 and 64; a draft that steps by 16 names pages nobody asked for."""
    asked = numbers(0, 1), numbers(0, 1)
    starts = np.arange(0, 128, 16)
    (found,) = strays("draft", asked, (starts // 16, starts // 16), by("load"))
    assert found.pages == (2, 3, 4, 5, 6, 7)
    assert strays("draft", asked, (numbers(0, 64) // 64, numbers(0, 64) // 64), by("load")) == []


def test_a_pool_with_fewer_of_the_pages_is_no_stray() -> None:
    """A short batch is the completion check's business; here every pair was requested."""
    assert strays("kv", (numbers(1, 2), numbers(5, 6)), (numbers(1), numbers(5)), by("load")) == []
    assert strays("kv", (numbers(1, 2), numbers(5, 6)), (numbers(1), numbers(6)), by("load")) != []
