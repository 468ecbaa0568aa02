"""A process's claim on its files in ``PROMETHEUS_MULTIPROC_DIR``, while others ask for it."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from hicache_dbg.exporters.prometheus_dead import Claim, is_claimed, put_together


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_scrape_that_asks_while_a_claim_is_made_does_not_prevent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    """Otherwise the process would be taken for dead as long as it lives, and its gauges removed."""
    asking: list[int] = []

    def looked_at(path: Path, flags: int, mode: int = 0o777) -> int:
        file = os_open(path, flags, mode)
        if not asking and path.name == f"hicache_dbg_{os.getpid()}.lock":
            asking.append(os_open(path, os.O_RDWR))
            fcntl.flock(asking[0], fcntl.LOCK_SH)  # as is_claimed does
        return file

    def answered(_: float) -> None:
        os.close(asking[0])

    os_open = os.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", looked_at)
        patch.setattr(time, "sleep", answered)
        claims = [Claim(tmp_path) for _ in range(sessions)]
    gauge = tmp_path / f"gauge_livesum_{os.getpid()}.db"
    gauge.touch()
    assert len(asking) == 1
    assert is_claimed(tmp_path, str(os.getpid()))
    assert put_together(tmp_path, most=0) == 0
    assert gauge.exists()
    assert len(claims) == sessions
    for claim in claims:
        claim.let_go()
