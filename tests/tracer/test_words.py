"""Numbers as messages show them."""

import pytest

from hicache_dbg.tracer.words import counted, every, failure, named, ranges


def test_numbers_are_shown_as_ranges() -> None:
    """Neighbours become one range; past the most, the rest are counted."""
    assert ranges(range(33, 64)) == "33..63"
    assert ranges([5, 3, 4, 9]) == "3..5, 9"
    assert ranges(range(0, 40, 2), most=3) == "0, 2, 4 and 17 more"


def test_a_noun_agrees_with_the_numbers_it_names() -> None:
    """One number has a singular noun, however often it is given."""
    assert named("layer", [4, 4]) == "layer 4"
    assert named("layer", [0, 1, 7]) == "layers 0..1, 7"


@pytest.mark.parametrize(
    ("count", "what", "words"),
    [
        (0, "tile", "0 tiles"),
        (1, "tile", "1 tile"),
        (2, "host page", "2 host pages"),
        (1, "copy", "1 copy"),
        (3, "copy", "3 copies"),
        (2, "class", "2 classes"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, what: str, words: str) -> None:
    """Only one is singular."""
    assert counted(count, what) == words


def test_a_long_count_may_be_grouped() -> None:
    """The format is that of the number alone."""
    assert counted(12_345, "tile", ",") == "12,345 tiles"


def test_a_whole_set_of_one_is_not_all() -> None:
    """One is not called all."""
    assert every(1, "mirror") == "the one mirror"
    assert every(9, "copy") == "all 9 copies"


def test_an_exception_is_written_with_its_class_and_at_most_so_much_of_its_message() -> None:
    """A host's message may be as long as its data."""
    assert failure(ValueError("no such page")) == "ValueError: no such page"
    assert failure(ValueError("x" * 10**6)) == f"ValueError: {'x' * 1000}..."
