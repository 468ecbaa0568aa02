"""``hicache-dbg bench`` prints a table on any machine, and says if a device is missing."""

import json

import pytest
import torch

from hicache_dbg.tracer.bench.table import Row, markdown
from hicache_dbg.tracer.cli.main import main


def test_the_cpu_table_is_measured_and_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every contiguous size has a ratio to the package in both orders; JSON holds the same rows."""
    monkeypatch.setattr("hicache_dbg.tracer.bench.digest_cpu.GIB", 1 << 26)  # 16 MB, for speed
    assert main(["bench", "--digests-only", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    ratios = [row["ratio"] for row in rows if row["part"] == "cpu over xxhash"]
    assert len(ratios) == 12
    assert all(ratio > 0 for ratio in ratios)


def test_a_table_says_how_to_read_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output has only the table, which says which direction is better."""
    row = Row("cpu over xxhash", "4096 B", 0.97, "5 GB/s", "")
    monkeypatch.setattr("hicache_dbg.tracer.bench.digests.digest_rows", lambda _device: [row])
    assert main(["bench", "--digests-only"]) == 0
    captured = capsys.readouterr()
    assert captured.out == markdown([row]) + "\n"
    assert "'cpu' and 'device' rows compare speeds, more is better" in captured.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing device exits with 3."""
    assert main(["bench", "--device", "cuda"]) == 3
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ratio", "goal", "kept"),
    [(0.97, ">= 0.9", "kept"), (0.8, ">= 0.9", "missed"), (1.2, "<= 1.1", "missed"), (1.0, "", "")],
)
def test_a_goal_is_kept_or_missed_in_words(ratio: float, goal: str, kept: str) -> None:
    """The table says for each goal whether it was kept."""
    row = Row("part", "case", ratio, "detail", goal)
    assert row.kept == kept
    assert (
        markdown([row]).splitlines()[-1]
        == f"| part | case | {ratio:.4f} | {goal} | {kept} | detail |"
    )
