"""The list of verbs: complete, each with an example, and fast to print."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from tests.diagnose.test_compare import BROKEN, MENDED
from tests.diagnose.test_gather import recorded

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.verbs import VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its help names it, and each of its subcommands has an example too."""
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    inner = ["export", "check", "preview"] if verb == "dashboards" else []
    for name in inner:
        assert main([verb, name, "--help"]) == 0
        assert f"hicache-dbg {verb} {name}" in " ".join(capsys.readouterr().out.split())
    assert inner or f"hicache-dbg {verb}" in text.partition("xample")[2]


def test_the_list_of_verbs_says_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    """All verbs are listed, in order."""
    assert main(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    places = [out.index(f"{name} {verb.summary}") for name, verb in VERBS.items()]
    assert places == sorted(places)


@pytest.mark.parametrize("arguments", [[], *([verb] for verb in VERBS)], ids=" ".join)
def test_help_imports_neither_torch_nor_a_database(arguments: list[str]) -> None:
    """Slow imports happen only when they are used."""
    code = (
        "import sys; from hicache_dbg.tracer.cli.main import main; "
        f"main({[*arguments, '--help']!r}); "
        "sys.exit(' '.join({'torch', 'duckdb', 'numpy', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("shape", ["report", "comparison"])
def test_the_schema_describes_what_diagnose_prints(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JSON of one run and of a comparison pass their schemas."""
    places = [str(recorded(tmp_path, name, run)) for name, run in (("a", BROKEN), ("b", MENDED))]
    assert main(["diagnose", *places[: 1 if shape == "report" else 2], "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert main(["schema", "--of", shape]) == 0
    jsonschema.validate(printed, json.loads(capsys.readouterr().out))
