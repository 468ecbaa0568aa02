"""The expressions that distinguish "no data", "nothing came back", "not checked" and "checked".

They are evaluated by Prometheus's own engine, through promtool, on series made for each case.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.services import require

from hicache_dbg.tracer.cli.main import main
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


def expression(board: str, title: str, legend: str = "") -> str:
    """Return an expression of one panel, by its legend if it has several."""
    panels = [
        panel
        for found in BOARDS
        for row in found.rows
        for panel in row.panels
        if (found.uid, panel.title) == (f"hicache-dbg-{board}", title)
    ]
    (found,) = {q.expr for panel in panels for q in panel.queries if legend in ("", q.legend)}
    return interpolate(found, {**EVERYTHING, **WINDOWS})


def sample(labels: str, value: float | None) -> list[dict[str, object]]:
    """Return what promtool expects of one series; empty if there is no data."""
    return [] if value is None else [{"labels": labels, "value": value}]


def answers(
    folder: Path, series: dict[str, str], expected: dict[str, list[dict[str, object]]]
) -> None:
    """Check with promtool what expressions give for series of 20 minutes, after 15."""
    require(shutil.which("promtool"), "promtool is not installed")
    told = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "15m", "exp_samples": samples}
            for expr, samples in expected.items()
        ],
    }
    path = folder / "states.yml"  # JSON is YAML
    path.write_text(json.dumps({"rule_files": [], "tests": [told]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_each_state_is_told_from_the_others(tmp_path: Path, case: str) -> None:
    """The share checked and the state of the pool match the name of the case."""
    rates, share, state = CASES[case]
    series = {
        f'hicache_dbg_tiles_total{{{LABELS},op="load",result="{result}"}}': f"0+{rate}x20"
        for result, rate in rates.items()
    }
    if rates:  # what is stored is witnessed, and says nothing of what comes back
        series[f'hicache_dbg_tiles_total{{{LABELS},op="backup",result="witnessed"}}'] = "0+90x20"
    first = "Mismatched, and of what share that was looked for"
    answers(
        tmp_path,
        series,
        {
            expression("integrity", first, "share checked"): sample("{}", share),
            expression("integrity", "Checked or not, by pool"): sample('{pool="mla"}', state),
        },
    )


def test_only_exporters_of_ours_count_as_those_that_answer(tmp_path: Path) -> None:
    """Other jobs of the same Prometheus, and targets that never were ours, do not move the share."""
    series = {
        'up{job="sglang",instance="a:1"}': "1x20",
        'up{job="sglang",instance="b:1"}': "1x9 0x20",
        'up{job="node",instance="a:9100"}': "0x20",
        'up{job="node",instance="b:9100"}': "1x20",
        'hicache_dbg_events_total{job="sglang",instance="a:1",rank="0"}': "0+1x20",
        'hicache_dbg_events_total{job="sglang",instance="b:1",rank="0"}': "0+1x9 stale",
    }
    asked = expression("self", "Exporters that answer")
    answers(tmp_path, series, {asked: sample("{}", 0.5)})


def test_a_finding_has_the_command_that_shows_it(tmp_path: Path) -> None:
    """Each line of the table has its server, and a command with its class, rank and pool."""
    place = 'class="row_width",pool="mla",rank="7"'
    series = {f'hicache_dbg_findings_total{{job="j",instance="a:1",{place}}}': "3x20"}
    parts = {
        "by_class": "hicache-dbg logs --finding row_width",
        "by_pool": "--pool mla",
        "by_rank": "--rank 7",
    }
    named = ",".join(f'{name}="{text}"' for name, text in parts.items())
    command = "hicache-dbg logs --finding row_width --rank 7 --pool mla"
    told = f'{{class="row_width",pool="mla",rank="7",instance="a:1",{named},command="{command}"}}'
    asked = expression("integrity", "Findings by class, pool and rank")
    answers(tmp_path, series, {asked: sample(told, 3)})
    answers(
        tmp_path, dict.fromkeys(series, "0x20"), {f"({asked}) == 0": sample('{command="  "}', 0)}
    )
    answers(tmp_path, {"up": "1x20"}, {asked: []})
    args = shlex.split(command)[1:]
    assert main([*args, "--help"]) == 0


@pytest.mark.parametrize(
    ("odd", "value"),
    [("", 1), ('slot_bytes="132"', 2), ('slot_bytes="132",dtype="v"', 2), ('tier="device"', 0)],
    ids=str,
)
def test_one_rank_that_differs_is_seen_among_many(tmp_path: Path, odd: str, value: float) -> None:
    """Whether the ends agree is told for all ranks together, and the odd rank has a line of its own."""
    shape = 'slot_bytes="256",page_bytes="1",slots_per_page="64",dtype="u",layers="4",pages="9"'
    rest = f'pool="mla",component="c",class="C",layout="l",{shape}'
    series = {}
    for rank in range(5):
        for tier in ("device", "host"):
            labels = f'job="j",instance="a:{rank}",rank="{rank}",device="cuda:{rank}",tier="{tier}",{rest}'
            for differing in odd.split(",") if odd and (rank, tier) == (3, "host") else ():
                name = differing.partition("=")[0]
                labels = re.sub(rf'{name}="\w+"', differing, labels)
            series[f"hicache_dbg_pool_geometry_info{{{labels}}}"] = "1x20"
    # A geometry that is over, in multiprocess mode.
    series['hicache_dbg_pool_geometry_info{pool="mla",component="c",rank="0",slot_bytes="1"}'] = (
        "0x20"
    )
    agree = expression("pools", "Do the two ends agree")
    lines = expression("pools", "Geometry of both ends")
    answers(
        tmp_path,
        series,
        {
            agree: sample('{pool="mla",component="c"}', value),
            f"count(({lines}) == 1)": sample("{}", 1 if odd.startswith("slot") else None),
        },
    )
