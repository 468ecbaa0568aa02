"""Equal findings become one and a count; nothing else is held back, and none is lost."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.tracer.collapse import FindingCollapser
from hicache_dbg.tracer.events import Event, FaultClass, Finding

#: What tells two kinds of finding apart, one by one, and what does not.
OTHER_KIND: dict[str, object] = {
    "cls": FaultClass.BIT_FLIP,
    "pool": "mla",
    "op": "load",
    "component": "scale",
    "check": "bytes",
}
SAME_KIND: dict[str, object] = {
    "time_ns": 1,
    "layer": 7,
    "pages": (9,),
    "page_count": 1,
    "expected": "1",
    "got": "2",
    "message": "other words",
    "op_id": 5,
    "rank": 3,
}


def kind(event: Finding) -> tuple[str, ...]:
    """Return what two findings of a kind agree in."""
    return tuple(str(getattr(event, name)) for name in OTHER_KIND)


@pytest.mark.parametrize(("name", "value"), OTHER_KIND.items())
def test_findings_that_differ_in_kind_are_passed_on_each(name: str, value: object) -> None:
    """By class, pool, operation, component or check."""
    collapser = FindingCollapser()
    two = [finding(), finding(**{name: value})]
    assert list(collapser.pass_on(two)) == two
    assert collapser.drain() == []


@pytest.mark.parametrize(("name", "value"), SAME_KIND.items())
def test_findings_that_differ_in_their_facts_alone_are_counted(name: str, value: object) -> None:
    """The first is told at once; the latest is the one that comes with the count."""
    collapser = FindingCollapser()
    first, later = finding(), finding(**{name: value})
    assert list(collapser.pass_on([first, later])) == [first]
    assert collapser.drain() == [later]


@dataclass
class Naive:
    """What was passed on and what is held back, as a list."""

    told: set[tuple[str, ...]] = field(default_factory=set)
    held: list[Finding] = field(default_factory=list)

    def takes(self, event: Event) -> bool:
        """Hold an event back, or return that it is passed on."""
        if not isinstance(event, Finding) or kind(event) not in self.told:
            self.told |= {kind(event)} if isinstance(event, Finding) else set()
            return True
        self.held.append(event)
        return False

    def drain(self) -> list[Event]:
        """Return the last of each kind with the sum of the counts, first seen first."""
        kinds = list(dict.fromkeys(map(kind, self.held)))
        parts = [[event for event in self.held if kind(event) == one] for one in kinds]
        self.held = []
        return [
            msgspec.structs.replace(part[-1], count=sum(event.count for event in part))
            for part in parts
        ]


findings = st.builds(
    finding,
    pool=st.sampled_from(["mla", "index_k"]),
    component=st.sampled_from(["key", "scale"]),
    count=st.integers(1, 3),
    layer=st.integers(0, 3),
)
batches = st.lists(
    st.one_of(
        st.lists(st.one_of(findings, st.sampled_from([copied(), health(), started()])), max_size=6),
        st.none(),
    ),
    max_size=8,
)


@given(batches)
def test_any_sequence_is_told_as_a_list_would_tell_it(batches: list[list[Event] | None]) -> None:
    """Over batches and drains (None): order is kept, and the counts add up to all there were."""
    collapser, naive = FindingCollapser(), Naive()
    for batch in [*batches, None]:
        if batch is None:
            assert collapser.drain() == naive.drain()
        else:
            assert list(collapser.pass_on(batch)) == [one for one in batch if naive.takes(one)]
    assert collapser.drain() == []
