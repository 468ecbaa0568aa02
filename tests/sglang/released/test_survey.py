"""The table that doctor prints for this version of SGLang."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import pytest
from released_base import VERSION
from released_cases import CASES
from released_traced import Start

from hicache_dbg.tracer.attach.sglang.kinds import known_classes
from hicache_dbg.tracer.attach.sglang.survey import survey
from hicache_dbg.tracer.cli.main import main


def test_every_known_class_of_this_version_is_there() -> None:
    """The table for this version matches the release: no class or method is missing."""
    found = survey()
    assert (found.version, found.supported) == (VERSION, True)
    states = {row.name: row for row in found.rows}
    for name in known_classes(VERSION):
        assert states[name].state == "attached", states[name]
        later = "without backup_tokens_from_device_all_layer, which this version lacks"
        assert states[name].detail == later or states[name].detail.endswith("both ends")


def test_every_class_that_is_tested_is_in_the_survey(traced: Start) -> None:
    """The survey lists each class of the round-trip tests as attached, and omits none."""
    built = {type(case.build(case.layout).pool).__name__ for case in CASES}
    assert built <= known_classes(VERSION)
    untested = known_classes(VERSION) - built
    # One pins its memory, whatever it is told; the other has no layers: test_envelopes.py.
    assert untested <= {"HiSparseMHATokenToKVPoolHost", "UnifiedPageEnvelopeHostPool"}


def test_everything_else_that_is_followed_is_there() -> None:
    """Gates, allocators, storage and transfers: each wrapped method exists in this version."""
    states = {row.name: row for row in survey().rows}
    for what in (
        "LayerDoneCounter",
        "LayerLoadingEvent",
        "PagedTokenToKVPoolAllocator",
        "MambaSlotAllocator",
        "HiCacheController",
        "HiCacheFile",
        "BaseKVSender",
        "BaseKVReceiver",
    ):
        assert states[what].state == "attached", states[what]


def test_looking_wraps_nothing() -> None:
    """A survey leaves every function unchanged."""
    from hicache_dbg.tracer.attach.sglang.classes import host_pool_classes, is_ours

    survey()
    assert not any(is_ours(value) for cls in host_pool_classes() for value in vars(cls).values())


def test_doctor_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """``hicache-dbg doctor --sglang`` names the version, its classes and what is attached."""
    assert main(["doctor", "--sglang"]) == 0
    text = capsys.readouterr().out
    assert "supported" in text
    assert "MLATokenToKVPoolHost" in text
