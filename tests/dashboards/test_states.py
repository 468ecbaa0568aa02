"""The expressions that distinguish "no data", "nothing came back", "not checked" and "checked".

They are evaluated by Prometheus's own engine, through promtool, on series made for each case.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.services import require

from hicache_dbg.tracer.dashboards.boards import BOARDS
from hicache_dbg.tracer.dashboards.expressions import EVERYTHING, interpolate

pytestmark = pytest.mark.service

LABELS = 'job="j",instance="i",rank="0",pool="mla"'
WINDOWS = {"__rate_interval": "4m", "__range": "10m"}

#: Tiles a minute that came back, by outcome; what the two panels then show.
CASES = {
    "no data": ({}, None, None),
    "nothing came back": ({"verified": 0, "mismatched": 0, "skipped": 0}, -1, 0),
    "not checked": ({"verified": 0, "mismatched": 0, "skipped": 60}, 0, 1),
    "partly checked": ({"verified": 30, "mismatched": 0, "skipped": 30}, 0.5, 2),
    "all checked": ({"verified": 60, "mismatched": 0, "skipped": 0}, 1, 3),
    "a mismatch among all": ({"verified": 54, "mismatched": 6, "skipped": 0}, 1, 4),
    "a mismatch among few": ({"verified": 0, "mismatched": 15, "skipped": 45}, 0.25, 4),
}


def expression(legend: str) -> str:
    """Return the integrity board's expression with this legend."""
    panels = [panel for row in BOARDS[0].rows for panel in row.panels]
    (found,) = {q.expr for panel in panels[:5] for q in panel.queries if q.legend == legend}
    return interpolate(found, {**EVERYTHING, **WINDOWS})


def sample(labels: str, value: float | None) -> list[dict[str, object]]:
    """Return what promtool expects of one series; empty if there is no data."""
    return [] if value is None else [{"labels": labels, "value": value}]


@pytest.mark.parametrize("case", CASES)
def test_each_state_is_told_from_the_others(tmp_path: Path, case: str) -> None:
    """The share checked and the state of the pool match the name of the case."""
    require(shutil.which("promtool"), "promtool is not installed")
    rates, share, state = CASES[case]
    series = [
        {
            "series": f'hicache_dbg_tiles_total{{{LABELS},op="load",result="{result}"}}',
            "values": f"0+{rate}x20",
        }
        for result, rate in rates.items()
    ]
    # What is stored is witnessed, and says nothing of what comes back.
    backup = f'hicache_dbg_tiles_total{{{LABELS},op="backup",result="witnessed"}}'
    series += [{"series": backup, "values": "0+90x20"}] if rates else []
    asked = [
        {"expr": expression("share checked"), "eval_time": "15m", "exp_samples": sample("{}", share)},
        {"expr": expression("{{pool}}"), "eval_time": "15m",
         "exp_samples": sample('{pool="mla"}', state)},
    ]  # fmt: skip
    told = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    path = tmp_path / "states.yml"  # JSON is YAML
    path.write_text(json.dumps({"rule_files": [], "tests": [told]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
