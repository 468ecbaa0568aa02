"""A page's own record of its tokens against the key it was found under."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.checks.identity import Identity, prefix_digests
from hicache_dbg.tracer.checks.violation import Access
from hicache_dbg.tracer.events import FaultClass

BY = Access("match", "reader")


def numbers(*values: int) -> np.ndarray:
    """An int64 array."""
    return np.array(values, np.int64)


def page(*tokens: int) -> bytes:
    """The tokens of a page."""
    return np.array(tokens, "<i4").tobytes()


def test_another_namespace_is_a_miss() -> None:
    """Entry 67: tokens 1..64 under salt x, asked under salt y with the same key: a finding."""
    tokens = page(*range(1, 65))
    book = Identity("host", 8)
    book.say(numbers(3), numbers(1), prefix_digests([b"x" + tokens]))
    (found,) = book.ask(numbers(3), numbers(1), prefix_digests([b"y" + tokens]), BY)
    assert (found.cls, found.pages) == (FaultClass.KEY_IDENTITY, (3,))
    assert book.ask(numbers(3), numbers(1), prefix_digests([b"x" + tokens]), BY) == []


def test_tags_keep_an_adapter_from_a_salt() -> None:
    """Entry 68: ("lora", "S") and ("salt", "S") on equal tokens are two identities."""
    one, two = (prefix_digests([tag + b"S" + page(1, 2)]) for tag in (b"lora", b"salt"))
    assert one != two


def test_equal_hashes_of_other_tokens_are_told_apart() -> None:
    """Entry 69: hash(t1) = hash(t2) by force; the second digest differs."""
    book = Identity("device", 8)
    book.say(numbers(0), numbers(1), prefix_digests([page(1, 2, 3)]))
    (found,) = book.ask(numbers(0), numbers(1), prefix_digests([page(4, 5, 6)]), BY)
    assert found.cls is FaultClass.KEY_IDENTITY


def test_a_history_that_was_edited_after_its_hash() -> None:
    """Entry 72: block 16, prompt [10] x 15, cached with 28, live with 11: the block's digest differs."""
    book = Identity("device", 8)
    book.say(numbers(0), numbers(1), prefix_digests([page(*[10] * 15, 28)]))
    (found,) = book.ask(numbers(0), numbers(1), prefix_digests([page(*[10] * 15, 11)]), BY)
    assert (found.cls, found.pages) == (FaultClass.KEY_IDENTITY, (0,))


def test_a_block_of_a_is_never_read_under_b() -> None:
    """Entry 108: two prompts with the host cache on: A's page follows its copy, and is A's there."""
    device, host = Identity("device", 4), Identity("host", 4)
    prompt_a, prompt_b = prefix_digests([page(1, 2)]), prefix_digests([page(3, 4)])
    device.say(numbers(2), numbers(5), prompt_a)
    device.carry(numbers(2), numbers(5), host, (numbers(1), numbers(9)))
    assert host.ask(numbers(1), numbers(9), prompt_a, BY) == []
    assert [v.pages for v in host.ask(numbers(1), numbers(9), prompt_b, BY)] == [(1,)]


def test_another_life_is_not_known() -> None:
    """A page that was handed out again says nothing of its former tokens, nor does its copy."""
    device, host = Identity("device", 4), Identity("host", 4)
    device.say(numbers(2), numbers(5), prefix_digests([page(1)]))
    assert device.ask(numbers(2), numbers(6), prefix_digests([page(7)]), BY) == []
    device.carry(numbers(2), numbers(6), host, (numbers(1), numbers(9)))
    assert host.ask(numbers(1), numbers(9), prefix_digests([page(7)]), BY) == []


@given(
    st.lists(st.binary(min_size=4, max_size=4), min_size=1, max_size=6),
    st.integers(0, 5),
    st.binary(min_size=4, max_size=4),
)
def test_a_page_stands_for_its_whole_prefix(pages: list[bytes], at: int, other: bytes) -> None:
    """Changing any page changes its digest and all behind it, and none before it."""
    at %= len(pages)
    changed = [*pages[:at], other, *pages[at + 1 :]]
    same = prefix_digests(pages) == prefix_digests(changed)
    assert same[:at].all()
    assert same[at:].all() == (other == pages[at])
