"""Where a call came from: the line of the program, however often the same place calls."""

from hicache_dbg.tracer.attach.call_site import access
from hicache_dbg.tracer.checks.violation import Access


def two_lines() -> list[Access]:
    """Calls on two lines, the first of them twice."""
    found = [access("a") for _ in range(2)]
    found.append(access("b"))
    return found


def test_a_call_is_named_by_its_own_line() -> None:
    """Two lines of one function are told apart, and one line is the same line each time."""
    first, again, other = two_lines()
    begin = two_lines.__code__.co_firstlineno
    assert first.site[0].line == again.site[0].line == begin + 2
    assert other.site[0].line == begin + 3
    assert [site.function for site in other.site[:2]] == [
        "two_lines",
        "test_a_call_is_named_by_its_own_line",
    ]


def test_two_calls_on_one_line_are_two_places_with_one_line() -> None:
    """Looked up by their instruction, they are still what a reader finds in the file."""
    left, right = access("left"), access("right")
    assert left.site == right.site
    assert left.site[0].file == __file__
