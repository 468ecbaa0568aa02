"""Recording and alerting rules pass promtool's tests, and those tests can fail."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from tests.services import require

from hicache_dbg.tracer.dashboards.expressions import names_in
from hicache_dbg.tracer.dashboards.vocabulary import vocabulary

ALERT = re.compile(r"- alert: (\w+)")
CASE = re.compile(r"- alertname: (\w+)\n\s+eval_time: \w+\n(\s+exp_alerts:)?")


@pytest.fixture
def rules(dashboards: Path) -> str:
    """The text of the rules."""
    return (dashboards / "prometheus" / "rules.yml").read_text()


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return promtool's output, run in the folder of the rules."""
    require(shutil.which("promtool"), "promtool is not installed")
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)


@pytest.mark.service
def test_the_rules_are_well_formed(dashboards: Path) -> None:
    """The rules, with expressions and templates, parse without a warning."""
    done = promtool("check", "rules", "--lint-fatal", "rules.yml", folder=dashboards / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 19 rules found" in done.stdout


@pytest.mark.service
def test_every_case_of_every_alert_holds(dashboards: Path) -> None:
    """Each alert fires with its text where it should, and nowhere else."""
    done = promtool("test", "rules", "rules_test.yml", folder=dashboards / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_cases_that_fire_and_cases_that_do_not(
    dashboards: Path, rules: str
) -> None:
    """Every alert has both."""
    cases = defaultdict(set)
    for name, fires in CASE.findall((dashboards / "prometheus" / "rules_test.yml").read_text()):
        cases[name].add(bool(fires))
    alerts = ALERT.findall(rules)
    assert len(alerts) == 11
    assert cases == {name: {True, False} for name in alerts}


@pytest.mark.service
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('result="mismatched"} > 0 unless', 'result="mismatched"} > 99 unless'),
        ('result="mismatched"}[10m]) > 0', 'result="mismatched"}[10m]) >= 0'),
        ("increase(hicache_dbg_findings_total[10m]) > 0", "hicache_dbg_findings_total > 0"),
        (") > 0.1\n", ") > 0.9\n"),
        (',reason="sampled_out"}[5m]', ',reason="off"}[5m]'),
        (
            "unless sum by (job, instance, rank) (pool_op:",
            "and sum by (job, instance, rank) (pool_op:",
        ),
        ('state="used"}[10m])) > 0', 'state="free"}[10m])) > 0'),
        ("unless sum by (job, instance, rank) (increase(hicache_dbg_copies_total[10m])) > 0", ""),
        ("increase(hicache_dbg_events_dropped_total[10m]) > 0", "events_dropped > 99"),
        ("(hicache_dbg_events_dropped_total > 0 unless", "(events_dropped > 0 unless"),
        ("unless last_over_time(hicache_dbg_events_dropped_total[10m] offset 10m)", ""),
        ("          and on (job, instance) up\n", ""),
        ("unless count by (job, instance, rank) (hicache_dbg_queue_depth)", ""),
        ("last_over_time(hicache_dbg_queue_depth[1h])", "hicache_dbg_queue_depth offset 1h"),
        ("increase(hicache_dbg_sink_errors_total[10m])) > 0", "hicache_dbg_sink_errors_total) > 0"),
        (
            "hicache_dbg_internal_errors_total > 0 unless",
            "hicache_dbg_internal_errors_total < 0 unless",
        ),
        ('op="fetch"}[1h]', 'op="load"}[1h]'),
        ('type="uncorrected"', 'type="corrected"'),
    ],
)
def test_a_weakened_rule_fails_its_cases(copy: Path, old: str, new: str) -> None:
    """The cases cover each condition of each alert: without one of them promtool's test fails."""
    path = copy / "prometheus" / "rules.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    done = promtool("test", "rules", "rules_test.yml", folder=copy / "prometheus")
    assert done.returncode == 1, done.stdout
    assert "FAILED" in done.stdout + done.stderr


def test_every_metric_of_the_rules_exists(dashboards: Path) -> None:
    """Every metric in the rules and in their cases is one that the exporters have."""
    known = vocabulary()
    for path in (dashboards / "prometheus").glob("*.yml"):
        names = names_in(path.read_text())
        assert len(names) > 10
        assert set(names) <= set(known)


def test_the_page_lists_every_alert(rules: str) -> None:
    """The table in the documentation has the alerts of the rules, with their severities."""
    page = (Path(__file__).parents[2] / "docs" / "dashboards.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, flags=re.MULTILINE)
    severities = re.findall(r"severity: (\w+)", rules)
    assert listed == list(zip(ALERT.findall(rules), severities, strict=True))
