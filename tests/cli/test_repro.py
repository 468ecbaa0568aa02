"""``hicache-dbg repro`` as a subprocess: its output, exit codes and robustness."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hicache_dbg.repro.faults.base import Fault
from hicache_dbg.tracer.cli.job import TracedJob
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.repro_options import RunOptions
from hicache_dbg.tracer.cli.repro_output import exit_code, show
from hicache_dbg.tracer.cli.traced import traced_run
from hicache_dbg.tracer.events import FaultClass

#: Small enough to be quick, with pools too small for it, so that pages travel.
SMALL = ["--sessions", "8", "--rounds", "2", "--max-tokens", "24", "--device-pages", "14"]


def repro(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and JSON of a small run."""
    code = main(["repro", *SMALL, *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_clean_run_verifies_every_tile(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing corrupted, nothing mismatched, nothing skipped, and pages did come back."""
    code, data = repro(capsys)
    assert code == 0
    assert data["sessions"]["total"] == 8
    assert data["sessions"]["corrupted"] == 0
    tiles = data["tiles"]
    assert tiles["verified"] > 0
    assert tiles["verified"] + tiles["witnessed"] == tiles["moved"]
    assert (tiles["mismatched"], tiles["skipped"], data["findings"]) == (0, 0, [])
    assert data["tiers_used"]
    assert {path["op"] for path in data["paths"]} == {"backup", "load"}
    assert not any(path["token_granular"] for path in data["paths"])


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_the_fault_is_found_and_named_in_every_layout(
    capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    """A host sized for fp8: row_width, found at registration and from the bytes, in that pool only."""
    code, data = repro(capsys, "--fault", "host_sized_for_fp8", "--layout", layout)
    assert code == 1
    assert data["sessions"]["corrupted"] > 0
    assert {(f["class"], f["pool"]) for f in data["findings"]} == {("row_width", "dsa_index_k")}
    assert {finding["check"] for finding in data["findings"]} == {"registration", "bytes"}
    message = data["findings"][0]["message"]
    for words in ("132", "256", "8448", "16384", "tokens 33..63 of each page are never copied"):
        assert words in message
    verdicts = {answer["name"]: answer["verdict"] for answer in data["hypotheses"]}
    assert verdicts["host_sized_for_another_dtype"] == "confirmed"
    assert verdicts["token_granular_path"] == "falsified"


def test_the_same_formula_is_right_for_fp8(capsys: pytest.CaptureFixture[str]) -> None:
    """The clean twin: with fp8 on the device, the same host formula fits."""
    code, data = repro(capsys, "--fault", "host_sized_for_fp8", "--index-dtype", "fp8")
    assert code == 0
    assert data["sessions"]["corrupted"] == 0
    assert data["findings"] == []
    assert data["tiles"]["verified"] > 0


def test_the_dead_class_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Act two: both the class in use and the fixed class that was never built are named."""
    code, data = repro(capsys, "--fault", "fix_on_dead_class")
    assert code == 1
    assert "PagedHostPool" in data["classes_built"]
    assert "IndexKHostPool" in data["classes_unbuilt"]
    assert "PagedHostPool" in data["findings"][0]["message"]


def test_a_run_without_a_host_hit_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """A single session that fits proves nothing, and the exit code says so."""
    assert main(["repro", "--sessions", "1", "--rounds", "2", "--max-tokens", "8"]) == 2
    assert "proves nothing" in capsys.readouterr().out


def test_a_report_begins_with_the_verdict_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong follows, then what else was asked; the last line is the verdict's again."""
    assert main(["repro", *SMALL, "--fault", "host_sized_for_fp8"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("verdict: the host mirror is sized for another dtype")
    assert lines[1].startswith("do: size the host pool from the device tensor's dtype and shape")
    headings = [
        "row_width: ",
        "tiles: moved ",
        "Hypotheses",
        "Geometry, ",
        "Paths taken",
        "engine: ",
    ]
    at = [next(n for n, line in enumerate(lines) if line.startswith(word)) for word in headings]
    assert at == sorted(at)
    assert lines[-2].startswith("CORRUPTION sessions: ")
    assert lines[-1] == lines[0]
    said = " ".join(" ".join(lines[2:-1]).split())
    assert "the formula of fp8 with one fp32 scale per 128" not in said
    assert "host_sized_for_another_dtype" in said


def test_a_fault_without_an_occasion_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """All pages came back intact, but that says nothing about a fault that never took effect."""
    config = RunOptions(sessions=8, rounds=2, max_tokens=24, device_pages=14).config()
    idle = Fault("rests", FaultClass.BIT_FLIP, "does nothing", needs="a longer day")
    outcome = traced_run(TracedJob(config, idle), lambda *_: None)
    assert outcome.result.tiers_used
    assert exit_code(outcome) == 2
    show(outcome)
    assert capsys.readouterr().out.startswith(
        "not a test, this run proves nothing: fault rests never took effect. It needs a longer day.\n"
    )


def test_a_fault_that_nobody_could_see_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """No reply changed and nothing was traced: the run is not called clean."""
    code, data = repro(capsys, "--fault", "evicted_pages_freed_twice", "--gate", "off")
    assert (code, data["sessions"]["corrupted"]) == (2, 0)
    assert "Use another --gate" in data["unproven"]


def test_with_the_gate_off_nothing_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    """The sessions run, and the report has no tiles."""
    code, data = repro(capsys, "--gate", "off")
    assert code == 0
    assert "tiles" not in data


def test_the_two_lines_of_the_story_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the paths table, the tiles, and the two summary lines."""
    assert main(["repro", *SMALL, "--tag", "t1"]) == 0
    text = capsys.readouterr().out
    (line,) = re.findall(r"^CORRUPTION .*$", text, re.MULTILINE)
    pattern = r"CORRUPTION sessions: 0/8 = 0% \(leak=0 no_tool=\d error=0 ok-ish\[done/maxrounds\]=\d/\d\)"
    assert re.fullmatch(pattern, line)
    assert re.search(r"^wall=\d+\.\ds counts=\{.*\}", text, re.MULTILINE)
    assert "100.0% of the loaded tiles were compared" in text
    assert text.startswith("run t1\n")


def write_trace(path: Path, lines: int) -> Path:
    """Write a trace whose requests share prefixes and return to them."""
    rows = [
        {
            "timestamp": number,
            "input_length": 512 * 13 + 100,
            "output_length": 64,
            "hash_ids": [number % 3, *range(10 + 20 * (number % 5), 23 + 20 * (number % 5))],
        }
        for number in range(lines)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Equal hash ids share pages; what was evicted comes back from the host, verified."""
    trace = write_trace(tmp_path / "trace.jsonl", 30)
    code = main(["repro", "--trace", str(trace), "--device-pages", "16", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 0
    assert data["engine"]["host_hit_pages"] > 0
    assert data["sessions"]["total"] == 30


def test_a_malformed_line_keeps_those_before_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The line number and the problem are reported once, and the run uses the lines before it."""
    trace = write_trace(tmp_path / "trace.jsonl", 30)
    trace.write_text(trace.read_text() + '{"timestamp": 1}\n')
    code = main(["repro", "--trace", str(trace), "--device-pages", "16", "--json"])
    captured = capsys.readouterr()
    assert code == 0
    assert json.loads(captured.out)["sessions"]["total"] == 30
    (line,) = captured.err.splitlines()
    assert "line 31" in line
    assert "replayed: 30 requests before it" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device-pages", "3"], ("device_pages is 3", "pages")),
        (["--layout", "diagonal"], ("diagonal", "layer_first")),
        (["--index-dtype", "int4"], ("int4", "bf16")),
        (["--fault", "gremlins"], ("gremlins", "hicache-dbg faults")),
        (["--trace", "no/such/file"], ("no/such/file",)),
        (["--record", "/dev/null/folder"], ("/dev/null/folder",)),
        (["--sessions", "0"], ("sessions is 0", "at least 1")),
    ],
)
def test_bad_input_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], options: list[str], words: tuple[str, ...]
) -> None:
    """Exit 2 and one line that holds the value and what is allowed; never a traceback."""
    assert main(["repro", *SMALL, *options]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("hicache-dbg: ")
    for word in words:
        assert word in line


def test_a_bad_variable_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command rejects what the settings reject."""
    monkeypatch.setenv("HICACHE_DBG_QUEUE", "many")
    assert main(["repro", *SMALL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "HICACHE_DBG_QUEUE='many'" in line


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and the option is named."""
    assert main(["repro", "--sesions", "3"]) == 2
    assert "sesions" in capsys.readouterr().err


def test_ctrl_c_leaves_a_readable_recording(tmp_path: Path) -> None:
    """Interrupted midway: exit 130, and diagnose reads what was recorded."""
    command = [sys.executable, "-m", "hicache_dbg", "repro"]
    process = subprocess.Popen(
        [*command, "--record", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    recording = _wait_for_copies(tmp_path, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in out + err
    done = subprocess.run(
        [sys.executable, "-m", "hicache_dbg", "diagnose", str(recording), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    tiles = json.loads(done.stdout)["tiles"]
    # Without a load so far, nothing was compared.
    assert done.returncode == (0 if tiles["verified"] else 2), done.stderr
    assert tiles["moved"] > 0


def _wait_for_copies(folder: Path, process: "subprocess.Popen[str]") -> Path:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        for recording in folder.glob("*.jsonl"):
            if '"copied"' in recording.read_text():
                return recording
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no copy was recorded: {process.communicate()}, {list(folder.iterdir())}")


def test_diagnose_agrees_with_the_run_it_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The recording gives the same tiles and the same verdict as the run itself."""
    code, data = repro(capsys, "--fault", "host_sized_for_fp8", "--record", str(tmp_path))
    assert code == 1
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["tiles"] == data["tiles"]
    assert read["verdict"] == data["verdict"]
    assert read["paths"] == data["paths"]


def test_schema_describes_a_real_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each recorded event passes the schema that the command prints."""
    import jsonschema

    repro(capsys, "--record", str(tmp_path))
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    lines = next(tmp_path.glob("*.jsonl")).read_text().splitlines()[1:]
    assert len(lines) > 10
    for line in lines:
        jsonschema.validate(json.loads(line), schema)


def test_faults_lists_what_can_be_injected(capsys: pytest.CaptureFixture[str]) -> None:
    """Every fault with its class, as text and as JSON."""
    assert main(["faults"]) == 0
    out = capsys.readouterr().out
    assert "host_sized_for_fp8 *" in out.partition("row_width: ")[2].partition("layout_order: ")[0]
    assert main(["faults", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 2


@pytest.mark.parametrize("verb", ["repro", "diagnose", "faults", "schema", "run"])
def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """``--help`` shows how the verb is used."""
    assert main([verb, "--help"]) == 0
    assert f"hicache-dbg {verb}" in capsys.readouterr().out
