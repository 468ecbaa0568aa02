"""``repro --storage file``: pages come back from storage, and text is right whatever fails there."""

import json
from pathlib import Path
from typing import Any

import pytest

from hicache_dbg.tracer.cli.main import main

#: Sequences that fit neither the device nor a host of the same size together.
SMALL = ["--sessions", "8", "--rounds", "2", "--max-tokens", "24", "--device-pages", "14"]


def repro(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and JSON of a small run."""
    code = main(["repro", *SMALL, *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_clean_run_fetches_and_a_second_one_answers_from_the_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both are clean; the second finds in the folder what the first computed."""
    stored, missed = [], []
    for _ in range(2):
        code, data = repro(capsys, "--storage", f"file:{tmp_path}")
        assert code == 0
        assert data["sessions"]["corrupted"] == 0
        assert data["tiles"]["moved"] == data["tiles"]["verified"] + data["tiles"]["witnessed"] > 0
        assert data["engine"]["fetched_pages"] > 0
        stored.append(data["engine"]["stored_pages"])
        missed.append(sum(data["engine"]["storage_misses"].values()))
    assert stored[0] > 5 * stored[1]
    assert missed[0] > 5 * missed[1]


@pytest.mark.parametrize(
    ("fault", "cls", "corrupted"),
    [
        ("stored_bit_flips", "storage_damage", False),
        ("another_dtypes_page", "key_identity", False),
        ("store_refuses_every_write", "dead_tier", False),
        ("fetch_reported_without_its_bytes", "failed_load", True),
    ],
)
def test_a_fault_is_named_and_harms_only_past_the_checks(
    capsys: pytest.CaptureFixture[str], fault: str, cls: str, corrupted: bool
) -> None:
    """Exit code 1 with the class, and wrong text only if the store's own check is disabled."""
    code, data = repro(capsys, "--storage", "file", "--fault", fault)
    assert code == 1
    assert {finding["class"] for finding in data["findings"]} == {cls}
    assert bool(data["sessions"]["corrupted"]) is corrupted


def test_a_writer_killed_while_it_stores_leaves_nothing_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """After SIGKILL of another writer, a run over the folder gets right pages or misses."""
    code, data = repro(capsys, "--storage", f"file:{tmp_path}", "--kill", "--sessions", "12")
    assert (code, data["sessions"]["corrupted"]) == (0, 0)
    assert data["engine"]["fetched_pages"] > 0
    assert not list(tmp_path.glob("**/*.partial"))


def test_a_writer_that_is_done_before_it_could_be_killed_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run too short for that is reported, and does not pass."""
    short = ("--sessions", "2", "--rounds", "1", "--max-tokens", "4")
    assert main(["repro", *SMALL, *short, "--storage", "file", "--kill"]) == 2
    assert "use more --sessions or --rounds" in capsys.readouterr().err


@pytest.mark.parametrize("storage", ["tape", "file.", "mooncake:here"])
def test_a_storage_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], storage: str
) -> None:
    """The error names what is allowed."""
    assert main(["repro", *SMALL, "--storage", storage]) == 2
    assert "mooncake:HOST:RPC_PORT:METADATA_PORT" in capsys.readouterr().err
    assert main(["repro", *SMALL, "--kill"]) == 2
