"""The compiled helper begins a load as our Python does, and reuses what nobody looks at."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from released_base import LAYERS
from released_driving import indices, operation
from released_stress import OURS, Outcome, Rig, Step, rigged
from released_traced import Start

from hicache_dbg.tracer.checks.gates import Loading
from hicache_dbg.tracer.settings import Native

BOTH = pytest.mark.parametrize("native", [Native.OFF, Native.ON])
LOAD = Step("load", form="queued")


def rounds(rig: Rig) -> int:
    """Return how many loads come before a set is used again."""
    return len(rig.controllers[0].layer_done_counter.events)


def loads(rig: Rig) -> list[Loading]:
    """Return the loads that are known."""
    return list(rig.run.attachment.observer.gates.current.values())


@BOTH
def test_a_load_begins_with_nothing_of_the_last_one(traced: Start, native: Native) -> None:
    """Its layers are closed, nobody has waited for any, and no page is its own yet."""
    seen: list[Any] = []
    with rigged(traced, native) as rig:
        gates = rig.run.attachment.observer.gates

        def look() -> None:
            load = gates.here.loading
            assert load is not None
            seen.append((load.layers, load.opened, dict(load.passed), dict(load.pages)))
            assert load.sender
            load.wait(7, 0)
            load.opened = load.layers - 1
            load.pages["theirs"] = indices([0], 1).numpy()
            rig.amid = lambda: None

        for _ in range(3 * rounds(rig)):
            rig.amid = look
            rig.submit(LOAD)
        assert seen == [(seen[0][0], -1, {}, {})] * (3 * rounds(rig))


@pytest.mark.parametrize("arrived", [False, True])
def test_a_load_that_nobody_looks_at_is_used_again(traced: Start, *, arrived: bool) -> None:
    """Whether the device has reported its last layer or not."""
    with rigged(traced) as rig:
        for _ in range(rounds(rig)):
            rig.submit(LOAD)
        before = {id(load) for load in loads(rig)}
        for _ in range(rounds(rig)):
            if arrived:
                rig.run.attachment.observer.gates.on_way.clear()
            rig.submit(LOAD)
        assert {id(load) for load in loads(rig)} == before


def test_loads_share_nothing(traced: Start) -> None:
    """Those that the helper makes because somebody looks at the last ones."""
    with rigged(traced) as rig:
        held: list[Loading] = []
        for _ in range(3 * rounds(rig)):
            rig.submit(LOAD)
            held += [load for load in loads(rig) if not any(load is one for one in held)]
        assert len(held) == 3 * rounds(rig)
        for name in ("pages", "passed"):
            assert len({id(getattr(load, name)) for load in held}) == len(held)


def test_a_set_of_events_that_is_gone_is_forgotten(traced: Start) -> None:
    """Another one may have its identity."""
    with rigged(traced) as rig:
        rig.submit(LOAD)  # from now on the helper is asked
        gates = rig.run.attachment.observer.gates
        kind, known = type(rig.controllers[0].layer_done_counter), set(gates.current)

        def start_loading() -> None:
            counters[0].update_producer()

        counters = [kind(LAYERS)]
        start_loading()
        assert set(gates.current) > known
        gates.here.loading = None
        gates.on_way.clear()
        counters.clear()
        gc.collect()
        assert set(gates.current) == known


def sites(rig: Rig, begins: Iterator[Callable[[], None]]) -> list[Any]:
    """Return where each of these loads is said to begin."""
    owner, found = rig.controllers[0], list[Any]()
    counter = owner.layer_done_counter
    for begin in begins:
        owner.load_queue[:] = [operation(indices([0], 4), indices([1], 4))]
        begin()
        load = rig.run.attachment.observer.gates.current[id(counter.events[counter.producer_index])]
        found.append(load.by.site)
    return found


def lines(owner: Any, count: int) -> Iterator[Callable[[], None]]:
    """Yield functions that begin a load in either of two lines of one function."""

    def either(second: bool) -> None:
        if second:
            owner.start_loading()
        else:
            owner.start_loading()

    for at in range(count):
        yield lambda at=at: either(at // (count // 4) % 2 == 1)  # type: ignore[misc]


def through_ours(owner: Any, count: int) -> Iterator[Callable[[], None]]:
    """Yield functions that begin a load behind frames of ours, and differ in the last frame that counts."""
    names: dict[str, Any] = {}
    exec(  # noqa: S102
        compile("def through(begin):\n    begin()\n", f"{OURS}/through.py", "exec"), names
    )
    through: Callable[[Callable[[], None]], None] = names["through"]

    def inner() -> None:
        through(owner.start_loading)

    def middle() -> None:
        inner()

    def left() -> None:
        middle()

    def right() -> None:
        middle()

    for at in range(count):
        yield right if at // (count // 4) % 2 else left


@pytest.mark.parametrize("callers", [lines, through_ours])
def test_a_load_names_the_line_where_it_began(
    traced: Start, callers: Callable[[Any, int], Iterator[Callable[[], None]]]
) -> None:
    """In every set of events, and when the next load of a set begins elsewhere."""
    seen = []
    for native in (Native.OFF, Native.ON):
        with rigged(traced, native) as rig:
            rig.step(LOAD, Outcome())
            seen.append(sites(rig, callers(rig.controllers[0], 4 * rounds(rig))))
            rig.run.attachment.detach()
            rig.session.close()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 2
