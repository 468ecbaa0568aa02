"""A user's hypothesis is judged beside ours, and its failure affects only itself."""

import json
from pathlib import Path

import pytest
from tests.diagnose.test_gather import recorded
from tests.exporters.samples import copied

from hicache_dbg.tracer.cli.main import main

OWN = """
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict


def judge(evidence):
    (slow,), = evidence.sql("SELECT count(*) FROM copies WHERE duration_us > 1000")
    return (Verdict.CONFIRMED if slow else Verdict.FALSIFIED), f"{slow} copies above 1 ms"


HYPOTHESIS = Hypothesis(
    name="slow_copies", question="Are copies slow?", falsified_by="none above 1 ms",
    confirmed_by="one above 1 ms", words="copies are slow", judge=judge,
)
"""


def asked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return diagnose's report on two copies with the hypothesis in ``text``."""
    own = tmp_path / "own.py"
    own.write_text(text)
    run = tmp_path / "run"
    run.mkdir()
    recorded(run, "run", [copied(duration_us=1500.0), copied(duration_us=20.0)])
    code = main(["diagnose", str(run), "--hypothesis", str(own), "--json"])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_users_hypothesis_queries_the_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its SQL runs over the table of copies, and its answer appears among the others."""
    code, out, _ = asked(tmp_path, OWN, capsys)
    answers = {answer["name"]: answer for answer in json.loads(out)["hypotheses"]}
    assert (code, answers["slow_copies"]["verdict"]) == (2, "confirmed")
    assert answers["slow_copies"]["evidence"] == "1 copies above 1 ms"
    assert len(answers) > 20


def test_a_users_hypothesis_that_fails_takes_nothing_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is undecided and says why; the others are judged."""
    code, out, _ = asked(tmp_path, OWN.replace("FROM copies", "FROM nowhere"), capsys)
    answers = {answer["name"]: answer for answer in json.loads(out)["hypotheses"]}
    assert (code, answers["slow_copies"]["verdict"]) == (2, "undecided")
    assert "nowhere" in answers["slow_copies"]["evidence"]
    assert answers["token_granular_path"]["verdict"] == "falsified"


@pytest.mark.parametrize(
    ("text", "says"),
    [("1 / 0", "ZeroDivisionError"), ("x = 1", "has no HYPOTHESIS"), ("HYPOTHESIS = 3", "has no")],
)
def test_a_file_without_a_hypothesis_is_refused(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which file and why."""
    code, out, err = asked(tmp_path, text, capsys)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
