"""The story on released code: a host pool sized for fp8 under a bf16 index, and a fix of the wrong class."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import pytest
from released_base import VERSION, bytes_of
from released_driving import backup, indices, load
from released_pages import index_k, v4
from released_traced import Start

from hicache_dbg.exporters.line import line
from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Started
from hicache_dbg.tracer.session import CorruptionFoundError
from hicache_dbg.tracer.settings import Action


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_act_one_is_told_before_a_byte_moves(traced: Start, layout: str) -> None:
    """256 B per token on the device, 132 on the host: found as the pool is built, with what will move."""
    run = traced()
    index_k(layout, bf16=True)
    (finding,) = run.sink.of(Finding)
    assert run.sink.of(Copied) == []
    assert [type(event) for event in run.sink.events] == [Started, Finding]
    assert finding.cls is FaultClass.ROW_WIDTH
    assert finding.expected == "256 B a token, 16384 B a page"
    assert finding.got == "132 B a token, 8448 B a page"
    assert "page p moves device tokens 33p..33p+32 and not 64p..64p+63" in finding.message
    assert "(page 1: tokens 33..65, not 64..127)" in finding.message
    assert "DSAIndexerPoolHost" in finding.message


def test_what_the_finding_says_is_what_moves(traced: Start) -> None:
    """A backup and load of page 1 through the real class restore device tokens 33..65 and no other."""
    run = traced()
    setup = index_k("layer_first", bf16=True)
    device = setup.devices[0]
    tokens = bytes_of(device, 1).reshape(-1, 256).clone()
    host, page = indices([5], 64), indices([1], 64)
    backup(setup, host, page, "kernel")
    for tensor in setup.devices:
        tensor.zero_()
    load(setup, host, page, "kernel")
    now = bytes_of(device, 1).reshape(-1, 256)
    assert now[33:66].equal(tokens[33:66])
    assert not now[:33].any()
    assert not now[66:].any()
    findings = run.sink.of(Finding)
    assert {finding.cls for finding in findings} == {
        FaultClass.ROW_WIDTH
    }  # the load's has that cause
    for finding in findings:
        assert "page p moves device tokens 33p..33p+32 and not 64p..64p+63" in finding.message
        assert "never copied" not in finding.message
    assert sum(event.mismatched for event in run.sink.of(Copied)) > 0


def test_action_raise_stops_the_server_at_construction(traced: Start) -> None:
    """HICACHE_DBG_ACTION=raise refuses the pool as it is built."""
    traced(action=Action.RAISE)
    with pytest.raises(CorruptionFoundError, match=r"page p moves device tokens 33p\.\.33p\+32"):
        index_k("layer_first", bf16=True)


def test_act_two_says_which_class_was_never_built(traced: Start) -> None:
    """For a model on DeepSeekV4PagedHostPool the start line names DSAIndexerPoolHost as not built."""
    run = traced()
    setup = v4("deepseek_v4_c128", 1728, 256)("page_first")
    backup(setup, indices([5, 0], 256), indices([1, 4], 256), "kernel")
    (started,) = run.sink.of(Started)
    assert started.classes_built == ("DeepSeekV4PagedHostPool",)
    assert "DSAIndexerPoolHost" in started.classes_unbuilt
    assert (started.system, started.version) == ("sglang", VERSION)
    assert "built=DeepSeekV4PagedHostPool unbuilt=" in line(started)
    (event,) = run.sink.of(Copied)
    assert line(event) == (
        "[HICACHE_DBG] pool=deepseek_v4_c128 op=backup token_granular=False layout=page_first "
        "h=512 d=512 slot_page=256"
    )
