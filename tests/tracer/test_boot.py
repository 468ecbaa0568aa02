"""The machine's own clock."""

import time
from pathlib import Path

import pytest

from hicache_dbg.tracer import boot


def test_it_runs_as_fast_as_any_clock_and_is_of_this_boot() -> None:
    """The id is the kernel's, spelt as the journal spells it."""
    began, since = boot.boot_ns(), time.monotonic_ns()
    assert 0 <= boot.boot_ns() - began <= time.monotonic_ns() - since + 10**9
    assert len(boot.boot_id()) == 32
    assert int(boot.boot_id(), 16)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_system_that_does_not_say_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Nothing fails without /proc, or without such a clock."""
    place = tmp_path / "boot_id"
    if content is not None:
        place.write_bytes(content)
    monkeypatch.setattr(boot, "_BOOT_ID", place)
    monkeypatch.setattr(boot, "_CLOCK", None)
    assert (boot.boot_id.__wrapped__(), boot.boot_ns()) == ("", 0)
