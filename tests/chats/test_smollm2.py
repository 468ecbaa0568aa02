"""Chats with a real model: sound tiers keep the text, a fault visibly changes it."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.handover.pair import require_nixl
from tests.services import require

from hicache_dbg.repro.chats.bars import without_bars
from hicache_dbg.repro.chats.smollm2 import PACKAGE
from hicache_dbg.repro.mooncake_master import master_binary
from hicache_dbg.repro.workload import Truth
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.repro_options import RunOptions
from hicache_dbg.tracer.cli.repro_output import Outcome, as_json, exit_code
from hicache_dbg.tracer.cli.traced import traced_run

#: As short as chats can be that still bring pages back: three of two turns.
SHORT: dict[str, Any] = {"model": "smollm2", "sessions": 3, "rounds": 2, "max_tokens": 12}

pytestmark = pytest.mark.timeout(900)


def chats(truth: Truth | None = None, **options: Any) -> Outcome:
    """Return the result of ``hicache-dbg repro --model smollm2`` with these options."""
    require(importlib.util.find_spec(PACKAGE), "SmolLM2 is not installed")
    job = RunOptions(**SHORT, **options).job()
    return traced_run(replace(job, truth=truth), lambda *_: None)


def told(outcome: Outcome) -> tuple[int, dict[str, Any], int]:
    """Return exit code, JSON, and the number of replies that differ from those without tiers."""
    data = as_json(outcome)
    changed = sum(one["expected"] != one["got"] for one in data["exchanges"])
    return exit_code(outcome), data, changed


@pytest.fixture(scope="module")
def clean() -> Outcome:
    """Run the chats through device and host; the reference replies are computed here, once."""
    return chats()


@pytest.fixture(scope="module")
def truth(clean: Outcome) -> Truth:
    """Return what the model says without tiers."""
    assert clean.result.truth is not None
    return clean.result.truth


@pytest.mark.service
def test_chats_through_the_tiers_read_as_without_them(clean: Outcome) -> None:
    """Every reply is equal, pages came back from the host, and every one of them was compared."""
    code, data, changed = told(clean)
    assert (code, changed, len(data["exchanges"])) == (0, 0, 6), data["verdict"]
    assert "Paris" in data["exchanges"][0]["got"]
    assert data["engine"]["host_hit_pages"] > 0
    assert data["tiles"]["verified"] + data["tiles"]["witnessed"] == data["tiles"]["moved"]


@pytest.mark.service
def test_a_fault_shows_in_the_text_and_is_named(truth: Truth) -> None:
    """Prompts of equal length share a key: one chat gets another's pages, and the cause is named."""
    code, data, changed = told(chats(truth, fault="contents_left_out_of_the_key"))
    assert code == 1
    assert changed
    assert {finding["class"] for finding in data["findings"]} == {"key_identity"}


@pytest.mark.service
@pytest.mark.parametrize(
    ("fault", "cls"),
    [
        ("stored_bit_flips_unseen", "storage_damage"),
        ("fetch_reported_without_its_bytes", "failed_load"),
    ],
)
def test_a_store_that_does_not_check_breaks_replies(truth: Truth, fault: str, cls: str) -> None:
    """The text visibly differs, and the class is named."""
    code, data, changed = told(chats(truth, storage="file", fault=fault))
    assert code == 1
    assert changed
    assert {finding["class"] for finding in data["findings"]} == {cls}


@pytest.mark.service
def test_names_cut_short_in_mooncake_store_break_replies(truth: Truth) -> None:
    """Pages come back over the network, among them those of another chat."""
    here = importlib.util.find_spec("mooncake") is not None and master_binary() is not None
    require(here, "Mooncake Store is not installed (extra mooncake)")
    fault = "storage_names_cut_short_unseen"
    code, data, changed = told(chats(truth, storage="mooncake", fault=fault))
    assert code == 1
    assert changed
    assert {finding["class"] for finding in data["findings"]} == {"key_identity"}
    assert data["engine"]["fetched_pages"] > 0


@pytest.mark.service
def test_a_store_that_checks_turns_damage_into_misses(truth: Truth) -> None:
    """The text is unchanged, and the damage is reported."""
    code, data, changed = told(chats(truth, storage="file", fault="stored_page_truncated"))
    assert (code, changed) == (1, 0)
    assert {finding["class"] for finding in data["findings"]} == {"storage_damage"}
    assert data["engine"]["storage_misses"]["short"] > 0


@pytest.mark.service
def test_chats_go_on_from_what_a_killed_process_stored(truth: Truth, tmp_path: Path) -> None:
    """After SIGKILL in the middle of the same chats, its pages are fetched and the text is unchanged."""
    code, data, changed = told(chats(truth, storage=f"file:{tmp_path}", kill=True))
    assert (code, changed, data["findings"]) == (0, 0, [])
    assert data["engine"]["fetched_pages"] > 0
    assert data["engine"]["stored_pages"] > 0  # it had not stored all of them


@pytest.mark.service
def test_a_prompt_computed_by_another_process_and_a_tile_of_it_lost(truth: Truth) -> None:
    """Prefill hands real keys and values over; one lost tile changes replies, and is named."""
    require_nixl()
    code, data, changed = told(chats(truth, pd=True, fault="tile_lost_on_the_wire"))
    assert code == 1
    assert 0 < changed <= 6
    assert data["engine"]["handed_pages"] > 0
    found = data["findings"]  # one of the keys and one of the values
    assert {(one["class"], one["pool"], one["layer"]) for one in found} == {
        ("pd_contract", "mha", 1)
    }
    assert all(2 in one["pages"] for one in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--pools", "mha"], "pools is 'mha', expected none with --model"),
        (["--ctx", "100"], "ctx is 100, expected none with --model"),
        (["--index-dtype", "fp8"], "index_dtype is 'fp8', expected none with --model"),
        (["--device", "cuda"], "device is 'cuda', expected 'cpu' with --model"),
        (["--trace", "x.jsonl"], "--trace replays requests and --model holds chats"),
        (["--kill"], "kill is True, expected a --storage to kill it over, or --pd"),
        (["--pd", "--storage", "file"], "leave one of them out"),
    ],
)
def test_what_chats_have_no_place_for_is_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    """Unsupported options are refused in one line that says what to do, before anything is loaded."""
    assert main(["repro", "--model", "smollm2", *options]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_only_bars_are_kept_off_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning between two updates of a progress bar stays visible, even if loading fails."""

    def load() -> None:
        sys.stderr.write("weights:  30%|###   | 3/10 [00:00<00:01, 9.1it/s]\r")
        sys.stderr.write("3it [00:00, 12.5it/s]\rthe file is old\n")
        sys.stderr.write("weights: 100%|######| 10/10 [00:01<00:00, 9.1it/s]\n")
        raise OSError("the file is cut short")

    with pytest.raises(OSError, match="cut short"), without_bars():
        load()
    assert capsys.readouterr().err == "the file is old\n"


def test_a_model_that_is_missing_is_one_line() -> None:
    """The message has the install command, and the exit code is that of a missing part."""
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *more: None if name == {PACKAGE!r} else find(name, *more)\n"
        "from hicache_dbg.tracer.cli.main import main\n"
        "sys.exit(main(['repro', '--model', 'smollm2']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ.copy()
    )
    assert done.returncode == 3
    assert "SmolLM2 is not installed: pip install" in done.stderr
    assert done.stderr.count("\n") == 1
