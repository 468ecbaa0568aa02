"""Both ends of a mirror compared before a byte moves."""

from dataclasses import replace

import pytest

from hicache_dbg.tracer.checks.registration import check_mirror
from hicache_dbg.tracer.checks.slots import slots_beyond
from hicache_dbg.tracer.events import FaultClass
from hicache_dbg.tracer.mirror import MirrorViews
from hicache_dbg.tracer.view import Run, View

BF16 = (Run(0, 256, 256),)
FP8 = (Run(0, 128, 128), Run(64 * 128, 4, 4))


def end(tier: str, runs: tuple[Run, ...], dtype: str, itemsize: int, *, layers: int = 2) -> View:
    """One end of an index-K mirror with pages of 64 tokens."""
    page = 64 * sum(run.slot_bytes for run in runs)
    return View(
        pool="dsa_index_k",
        component="index_k",
        tier=tier,
        layout="page_first" if tier == "host" else "layer_first",
        dtype=dtype,
        itemsize=itemsize,
        bases=tuple(range(0, layers * 1_000_000, 1_000_000)),
        page_stride=page,
        page_span=page,
        pages=10,
        slots_per_page=64,
        runs=runs,
    )


def mirror(device: View, host: View | None) -> MirrorViews:
    """A mirror of one component."""
    return MirrorViews(
        pool="dsa_index_k",
        device={"index_k": device},
        host={} if host is None else {"index_k": host},
        device_cls="DevicePool",
        host_cls="IndexKHostPool",
        index_unit="token",
        slot_page=64,
        tokens_per_page=64,
        page_indexed=True,
        pinned=None,
    )


def test_the_story_is_told_before_the_first_copy() -> None:
    """132 against 256, 8448 against 16384, tokens 33..63: all in one message, to the letter."""
    (finding,) = check_mirror(
        mirror(end("device", BF16, "bfloat16", 2), end("host", FP8, "uint8", 1)), time_ns=1
    )
    assert finding.cls is FaultClass.ROW_WIDTH
    assert finding.slots == "33..63"
    assert finding.message == (
        "dsa_index_k.index_k: the host mirror (IndexKHostPool) holds 132 B a token (8448 B a page of 64), "
        "the device (DevicePool) stores 256 B a token (16384 B a page of 64, bfloat16): "
        "tokens 33..63 of each page are never copied"
    )


def test_one_item_size_for_two_widths_reads_pages_from_elsewhere() -> None:
    """The message says what page p moves, and which of the device's tokens no copy reaches."""
    ends = mirror(end("device", BF16, "bfloat16", 2), end("host", FP8, "uint8", 1))
    (finding,) = check_mirror(replace(ends, one_item=True), time_ns=1)
    assert (finding.cls, finding.slots) == (FaultClass.ROW_WIDTH, "")
    assert finding.message.endswith(
        ": a copy takes one item size, 8448 B, for both ends, so page p moves device tokens 33p..33p+32 and "
        "not 64p..64p+63 (page 1: tokens 33..65, not 64..127); device tokens 330..639 are never reached"
    )


def test_one_item_size_that_reaches_into_the_last_slot_leaves_none_out() -> None:
    """A device slot that is moved in part is not called unreached."""
    device = end("device", BF16, "bfloat16", 2)
    host = replace(device, tier="host", page_span=device.page_span - 16)
    (finding,) = check_mirror(replace(mirror(device, host), one_item=True), time_ns=1)
    assert finding.message.endswith("(page 1: tokens 63..127, not 64..127)")


@pytest.mark.parametrize("runs", [BF16, FP8])
def test_equal_ends_raise_nothing(runs: tuple[Run, ...]) -> None:
    """The clean twin, in either dtype: no finding."""
    dtype = ("bfloat16", 2) if runs is BF16 else ("uint8", 1)
    assert (
        check_mirror(mirror(end("device", runs, *dtype), end("host", runs, *dtype)), time_ns=1)
        == []
    )


def test_a_component_without_a_mirror_is_a_missing_sidecar() -> None:
    """Fault case 27: the device has index_k, the host has not."""
    (finding,) = check_mirror(mirror(end("device", BF16, "bfloat16", 2), None), time_ns=1)
    assert finding.cls is FaultClass.SIDECAR_MISSING
    assert "index_k" in finding.message


def test_a_longer_host_page_says_by_how_much() -> None:
    """The other way round, nothing is lost on the way to the host, and the message says so."""
    (finding,) = check_mirror(
        mirror(end("device", FP8, "uint8", 1), end("host", BF16, "bfloat16", 2)), time_ns=1
    )
    assert finding.cls is FaultClass.ROW_WIDTH
    assert "7936 B longer" in finding.message


def test_padding_that_the_host_leaves_out_is_no_fault() -> None:
    """A shorter host page that holds every slot whole keeps every byte."""
    host = end("host", FP8, "uint8", 1)
    device = replace(end("device", FP8, "uint8", 1), page_span=8640, page_stride=8640)
    assert check_mirror(mirror(device, host), time_ns=1) == []
    (finding,) = check_mirror(mirror(host, replace(device, tier="host")), time_ns=1)
    assert "192 B longer" in finding.message


def test_equal_bytes_in_another_dtype_are_a_finding() -> None:
    """Bytes that agree by accident while elements are counted differently are named."""
    device = end("device", BF16, "bfloat16", 2)
    (finding,) = check_mirror(mirror(device, replace(device, dtype="uint8", itemsize=1)), time_ns=1)
    assert finding.cls is FaultClass.ROW_WIDTH
    assert "bfloat16" in finding.message


def test_a_mirror_of_fewer_layers_is_a_finding() -> None:
    """Fault case 11: ends that own different layers."""
    (finding,) = check_mirror(
        mirror(end("device", FP8, "uint8", 1), end("host", FP8, "uint8", 1, layers=1)), time_ns=1
    )
    assert finding.cls is FaultClass.ROW_WIDTH
    assert (finding.expected, finding.got) == ("2 layers", "1 layer")


def test_slots_beyond_a_reach_include_the_one_cut_in_half() -> None:
    """A slot of which only a part moves did not move; a scale past the reach counts too."""
    assert slots_beyond(end("device", BF16, "bfloat16", 2), 8448)[0] == 33
    assert slots_beyond(end("device", BF16, "bfloat16", 2), 8449)[0] == 33
    assert slots_beyond(end("device", FP8, "uint8", 1), 8448) == []
    assert slots_beyond(end("device", FP8, "uint8", 1), 8447) == [63]
    assert slots_beyond(end("device", FP8, "uint8", 1), 8192) == list(range(64))
