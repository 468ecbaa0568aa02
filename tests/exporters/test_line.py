"""The lines of text, word for word."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.line import line, page_ranges
from hicache_dbg.tracer.events import Event


def test_a_copy_has_the_fixed_line() -> None:
    """A copy's line has the seven fields in order, and nothing else."""
    assert line(copied()) == (
        "[HICACHE_DBG] pool=deepseek_v4_c128 op=backup token_granular=False "
        "layout=page_first h=512 d=512 slot_page=256"
    )


def test_a_finding_names_both_values() -> None:
    """A finding's line has class, pool, op, layer, pages, both values and the message."""
    assert line(finding()) == (
        "[HICACHE_DBG] finding=row_width pool=index_k op=backup layer=all pages=0-2,7(+36) "
        "expected=256 got=132: the host has 132 bytes a token where the device has 256"
    )


def test_a_finding_leaves_out_what_it_does_not_know() -> None:
    """A finding without operation, page or value leaves them out; a collapsed one has its count."""
    event = finding(op="", pages=(), page_count=0, expected="", got="", layer=3, count=999)
    assert line(event) == (
        "[HICACHE_DBG] finding=row_width pool=index_k op=- layer=3 pages=- count=999: "
        "the host has 132 bytes a token where the device has 256"
    )


def test_the_start_line_holds_both_ends() -> None:
    """A rank's start line says what is attached and gives the geometry of both ends."""
    assert line(started()) == (
        "hicache-dbg started rank=0 system=hicache_dbg.pools version=0.1.0 checksum=loads "
        "built=IndexKHostPool unbuilt=LegacyIndexKHostPool unrecognised=- pools=1; "
        "index_k: 64 tokens/page, indexed by token, "
        "device IndexKDevicePool layer_first cuda:0 "
        "(key bfloat16 256 B/slot 16384 B/page 128 pages 4 layers) <-> "
        "host IndexKHostPool page_first cpu pinned "
        "(key uint8 132 B/slot 8448 B/page 128 pages 4 layers)"
    )


@pytest.mark.parametrize(
    ("unit", "indices", "said"),
    [
        ("token", 256, "256 tokens/page, indexed by token, device"),
        ("page", 1, "256 tokens/page, indexed by page, device"),
        ("slot", 64, "256 tokens/page, indexed by slot (64/page), device"),
        ("token", 64, "256 tokens/page, indexed by token (64/page), device"),
    ],
)
def test_a_start_line_says_nothing_twice(unit: str, indices: int, said: str) -> None:
    """What an index counts is said, and how many make up a page where that is another number."""
    event = started()
    (mirror,) = event.mirrors
    mirror = msgspec.structs.replace(
        mirror, index_unit=unit, slot_page=indices, tokens_per_page=256
    )
    assert f"; index_k: {said} " in line(msgspec.structs.replace(event, mirrors=(mirror,)))


def test_the_health_line_sums_up() -> None:
    """A heartbeat is one line with what was checked, and what was lost where."""
    assert line(health()) == (
        "hicache-dbg health rank=0 alive copies=900 verified=500 witnessed=390 mismatched=3 "
        "skipped=7(off:2,partial:5) findings=4 events=1000 queue=17 "
        "dropped=7(bus/queue_full:1,journald/blocked:6) errors=3(probe:1,sink/otel:2) "
        "overhead_s=0.125"
    )


@pytest.mark.parametrize("event", [started(), health()], ids=["started", "health"])
def test_only_copies_and_findings_carry_the_mark(event: Event) -> None:
    """A grep for the mark finds paths and findings, and no other line."""
    assert "HICACHE_DBG" not in line(event)


@given(st.text(), st.text(), st.text())
def test_no_text_can_break_the_line(pool: str, message: str, value: str) -> None:
    """Whatever a text contains, an event stays one line with the same fields."""
    assert len(line(copied(pool=pool)).splitlines()) == 1
    text = line(finding(pool=pool, message=message, expected=value, got=value))
    assert len(text.splitlines()) == 1
    assert text.startswith("[HICACHE_DBG] finding=row_width pool=")


@given(st.sets(st.integers(0, 40)))
def test_ranges_say_exactly_the_pages(pages: set[int]) -> None:
    """The ranges hold every page once, and nothing else."""
    told: list[int] = []
    text = page_ranges(sorted(pages))
    for piece in text.split(",") if pages else []:
        first, _, last = piece.partition("-")
        told.extend(range(int(first), int(last or first) + 1))
    assert told == sorted(pages)


def test_ranges_count_the_pages_that_are_not_listed() -> None:
    """Pages beyond the listed ones are counted, even if none is listed."""
    assert page_ranges((4, 5), 10) == "4-5(+8)"
    assert page_ranges((), 10) == "(10)"
