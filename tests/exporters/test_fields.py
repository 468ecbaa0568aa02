"""The HICACHE_* fields and the journal's rules for their names."""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import MESSAGE_IDS, PRIORITIES, fields
from hicache_dbg.exporters.journal_format import FieldNameError, encode_entry
from hicache_dbg.tracer.events import Event

EVENTS: list[Event] = [copied(), finding(), health(), started()]


def test_a_copy_has_the_fields_of_the_design() -> None:
    """Every fact of a copy has its own field, in a fixed order, as text."""
    trace = {"trace_id": "a" * 32, "span_id": "b" * 16}
    assert list(fields(copied(**trace)).items()) == [
        ("HICACHE_EVENT", "copied"),
        ("HICACHE_POOL", "deepseek_v4_c128"),
        ("HICACHE_OP", "backup"),
        ("HICACHE_TOKEN_GRANULAR", "False"),
        ("HICACHE_LAYOUT", "page_first"),
        ("HICACHE_H", "512"),
        ("HICACHE_D", "512"),
        ("HICACHE_SLOT_PAGE", "256"),
        ("HICACHE_UNIT", "token"),
        ("HICACHE_PAGES", "2"),
        ("HICACHE_ITEM_BYTES", "16384"),
        ("HICACHE_DTYPE", "bfloat16"),
        ("HICACHE_LAYERS", "4"),
        ("HICACHE_CLASS", "C128HostPool"),
        ("HICACHE_IO_BACKEND", "kernel"),
        ("HICACHE_SRC", "device"),
        ("HICACHE_DST", "host"),
        ("HICACHE_BYTES", "131072"),
        ("HICACHE_DURATION_US", "250.500"),
        ("HICACHE_VERIFIED", "0"),
        ("HICACHE_WITNESSED", "7"),
        ("HICACHE_MISMATCHED", "0"),
        ("HICACHE_SKIPPED", "1"),
        ("HICACHE_SKIP_REASON", "partial"),
        ("HICACHE_STATUS", "ok"),
        ("TRACE_ID", "a" * 32),
        ("SPAN_ID", "b" * 16),
        ("HICACHE_RANK", "0"),
    ]


def test_a_finding_gives_class_place_and_both_values() -> None:
    """A finding is selected by class, pool, layer and page, and holds both values."""
    found = fields(finding(layer=3))
    assert found["HICACHE_FINDING"] == "row_width"
    assert found["HICACHE_POOL"] == "index_k"
    assert found["HICACHE_LAYER"] == "3"
    assert found["HICACHE_PAGE"] == "0"
    assert found["HICACHE_PAGES"] == "40"
    assert (found["HICACHE_EXPECTED"], found["HICACHE_GOT"]) == ("256", "132")


@pytest.mark.parametrize("event", [finding(), health(), started()])
def test_the_rare_events_come_back_whole(event: Event) -> None:
    """A reader of the journal rebuilds a finding, a start and a heartbeat exactly."""
    assert msgspec.json.decode(str(fields(event)["HICACHE_RECORD"]), type=Event) == event


@pytest.mark.parametrize("odd", ["\x7f", "\x9b", "\ufffe", "\u202e", "x\U0001f600\x85y", "頁\x80"])
def test_a_record_is_text_to_the_journal(odd: str) -> None:
    """No character that a client sent makes ``journalctl -o json`` print the record as bytes."""
    event = finding(message=odd, requests=(odd,))
    record = fields(event)["HICACHE_RECORD"]
    assert isinstance(record, str)
    assert record.isascii()
    assert record.isprintable()
    assert msgspec.json.decode(record, type=Event) == event


def test_a_field_has_each_of_its_values() -> None:
    """A copy is found by each request and each reason; a finding about two pools by either."""
    copy = fields(copied(requests=("a", "b,c"), skipped={"reused": 1, "partial": 2, "off": 0}))
    assert copy["HICACHE_REQUEST"] == ("a", "b,c")
    assert copy["HICACHE_SKIP_REASON"] == ("partial", "reused")
    found = fields(finding(pool="mla+index_k"))
    assert found["HICACHE_POOL"] == ("mla+index_k", "mla", "index_k")
    entry = encode_entry({"HICACHE_REQUEST": ("a", "b\nc"), "HICACHE_OP": "load"})
    assert entry == b"HICACHE_REQUEST=a\nHICACHE_REQUEST\n\3\0\0\0\0\0\0\0b\nc\nHICACHE_OP=load\n"


def test_every_event_type_has_its_own_id_and_a_numeric_priority() -> None:
    """Ids are 128 bits, one per event type; findings are errors, copies are debug."""
    assert set(MESSAGE_IDS) == set(get_args(Event))
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)
    assert all(len(value) == 32 and int(value, 16) for value in MESSAGE_IDS.values())
    assert [PRIORITIES[type(event)] for event in EVENTS] == [7, 3, 6, 6]


@pytest.mark.parametrize("event", EVENTS)
def test_no_field_breaks_the_rules_of_the_journal(event: Event) -> None:
    """Each field of each event passes the encoder, which raises for a bad name."""
    assert decode_entry(encode_entry(fields(event))).keys() == fields(event).keys()


@pytest.mark.parametrize(
    "name", ["lower", "_TRUSTED", "1ST", "WITH-DASH", "WITH SPACE", "X" * 65, "", "É", "A\n"]
)
def test_a_name_that_the_journal_would_drop_is_an_error(name: str) -> None:
    """An invalid name is refused before it is sent, and named."""
    with pytest.raises(FieldNameError, match="journald would drop the field"):
        encode_entry({"MESSAGE": "fine", name: "value"})


def test_the_longest_name_is_allowed() -> None:
    """Sixty-four characters are allowed."""
    assert encode_entry({"X" * 64: "v"}) == b"X" * 64 + b"=v\n"


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True),
        st.text(st.characters()),  # lone surrogates too
        max_size=5,
    )
)
def test_every_value_comes_back_from_an_entry(entry: dict[str, str]) -> None:
    """A reader of the native protocol gets every name and value back, including line breaks."""
    told = {name: value.encode(errors="backslashreplace") for name, value in entry.items()}
    assert decode_entry(encode_entry(entry)) == told


def decode_entry(data: bytes) -> dict[str, bytes]:
    """Parse the native protocol as journald does."""
    found = {}
    while data:
        head, _, rest = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + length], rest[9 + length :]
        found[name.decode()] = value
        data = rest
    return found
