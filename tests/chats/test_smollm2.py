"""A real model's chats: equal text through sound tiers, visibly other text through a fault."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from tests.services import require

from hicache_dbg.repro.chats.smollm2 import PACKAGE
from hicache_dbg.tracer.cli.main import main

#: As short as a chat can be that still loads pages back: three chats of two turns.
SHORT = ("--model", "smollm2", "--sessions", "3", "--rounds", "2", "--max-tokens", "12", "--json")


def chats(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, object]]:
    """Exit code and JSON of a run."""
    code = main(["repro", *SHORT, *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.service
@pytest.mark.timeout(900)
def test_chats_through_the_tiers_read_as_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Every reply is equal, pages came back from the host, and every one of them was compared."""
    require(importlib.util.find_spec(PACKAGE), "SmolLM2 is not installed")
    code, told = chats(capsys)
    exchanges = told["exchanges"]
    assert isinstance(exchanges, list)
    assert len(exchanges) == 6
    assert [one for one in exchanges if one["expected"] != one["got"]] == []
    assert "Paris" in exchanges[0]["got"]
    assert code == 0, told["verdict"]
    assert told["tiles"]["verified"] > 0  # type: ignore[index]


@pytest.mark.service
@pytest.mark.timeout(900)
def test_a_fault_shows_in_the_text_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of one length share a key: somebody gets another's answer, and we say why."""
    require(importlib.util.find_spec(PACKAGE), "SmolLM2 is not installed")
    code, told = chats(capsys, "--fault", "contents_left_out_of_the_key")
    assert code == 1
    assert any(one["expected"] != one["got"] for one in told["exchanges"])  # type: ignore[attr-defined]
    assert {finding["class"] for finding in told["findings"]} == {"key_identity"}  # type: ignore[attr-defined]


def test_a_model_that_is_missing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that installs it, and the exit code of a missing part."""
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
