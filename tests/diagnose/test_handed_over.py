"""The digests of decode's received pages are compared with those that prefill sent."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tracer.checks.statements import tiles

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.diagnose.evidence import Evidence, Tiles
from hicache_dbg.tracer.diagnose.handed_over import settle
from hicache_dbg.tracer.diagnose.report import build_report
from hicache_dbg.tracer.events import Event, Op, Stated


def _ends(digests: list[str], layers: tuple[int, ...]) -> list[list[Event]]:
    """Return a good page and one of ``digests`` for ``layers``, as both ends state them."""
    recordings: list[list[Event]] = []
    for role in ("prefill", "decode"):
        said = [tiles("a", page, ["1", "2"], role=role) for page in (0, 1)]
        said[1] = replace(said[1], values=tuple(digests), layers=layers)
        recordings.append([*said])
    return recordings


@given(
    st.lists(st.sampled_from(["1", "2"]), max_size=4),
    st.lists(st.integers(0, 9), max_size=4, unique=True),
)
def test_a_statement_without_one_value_a_layer_is_counted_and_the_rest_compared(
    digests: list[str], layers: list[int]
) -> None:
    """A malformed statement is one internal error in the report; neither comparison nor join fails."""
    recordings = _ends(digests, tuple(layers))
    first = recordings[0][0]
    assert isinstance(first, Stated)
    pool = first.pool
    evidence = Evidence(by_pool={(pool, Op.RECV.value): Tiles(witnessed=10)})
    settle(evidence, recordings)
    uneven = len(digests) != len(layers)
    compared = 2 if uneven else 2 + len(layers)
    assert evidence.by_pool[pool, Op.RECV.value] == Tiles(
        verified=compared, witnessed=10 - compared
    )
    assert evidence.checked_share == compared / 10  # nothing was loaded
    assert build_report(evidence).internal_errors == ({"join/tiles": 2} if uneven else {})
    assert join(recordings) == []
