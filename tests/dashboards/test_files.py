"""The exported files: each is read by the program that it is for."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.exporters.journal import JOURNALD
from tests.services import require

from hicache_dbg.tracer.dashboards.expressions import names_in
from hicache_dbg.tracer.dashboards.files import FOLDERS, ChangedError, export
from hicache_dbg.tracer.dashboards.vocabulary import vocabulary
from hicache_dbg.tracer.sinks import socket_answers

WAIT_S = 10.0
UNIT = "[Unit]\nDescription=a server\n[Service]\nExecStart=/bin/true\n"
DROP_INS = ("hicache-dbg.conf", "hicache-dbg-namespace.conf")


def test_an_export_is_complete_and_can_be_repeated(tmp_path: Path, dashboards: Path) -> None:
    """Every file of every folder is written, and a second export changes nothing."""
    written = export(tmp_path / "out")
    assert {path.relative_to(tmp_path / "out").parts[0] for path in written} == set(FOLDERS)
    sources = {p for folder in FOLDERS for p in (dashboards / folder).rglob("*") if p.is_file()}
    assert len(written) == len(sources) > 12
    assert export(tmp_path / "out") == written


def test_an_export_keeps_what_was_changed(tmp_path: Path) -> None:
    """An edited file is kept and nothing else is written, unless replacement is requested."""
    out = tmp_path / "out"
    export(out)
    (out / "prometheus" / "rules.yml").write_text("groups: []\n")
    (out / "systemd" / "hicache-dbg.conf").unlink()
    with pytest.raises(ChangedError, match=r"rules\.yml"):
        export(out)
    assert not (out / "systemd" / "hicache-dbg.conf").exists()
    export(out, replace=True)
    assert "hicache-dbg-alerts" in (out / "prometheus" / "rules.yml").read_text()


@pytest.mark.service
def test_prometheus_accepts_its_configuration(copy: Path) -> None:
    """Prometheus accepts the compose file's configuration and rules, as mounted."""
    require(shutil.which("promtool"), "promtool is not installed")
    shutil.copy(copy / "prometheus" / "rules.yml", copy / "compose")
    command = ["promtool", "check", "config", str(copy / "compose" / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_mounts_files_that_are_there(copy: Path) -> None:
    """Each path that a service mounts exists beside the compose file."""
    folder = copy / "compose"
    mounts = re.findall(r"- (\.\.?/[\w./-]+):/", (folder / "compose.yml").read_text())
    assert len(mounts) == 5
    for mount in mounts:
        assert (folder / mount).exists(), mount


@pytest.mark.service
def test_compose_accepts_its_file(copy: Path) -> None:
    """docker-compose itself parses the file; it would reject a misspelt key."""
    file = copy / "compose" / "compose.yml"
    assert compose(file).returncode == 0, compose(file).stderr
    file.write_text(file.read_text().replace("depends_on:", "depend_on:"))
    assert "Unsupported config option" in compose(file).stderr


def compose(file: Path) -> subprocess.CompletedProcess[str]:
    """Return what docker-compose makes of a file; this needs no daemon."""
    require(shutil.which("docker-compose"), "docker-compose is not installed")
    command = ["docker-compose", "-f", str(file), "config"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.service
def test_ports_are_published_once_and_on_the_loopback(copy: Path) -> None:
    """No two services publish the same port, and none is reachable from other machines."""
    resolved = compose(copy / "compose" / "compose.yml").stdout
    published = re.findall(r"^ +- (\S+):(\d+):\d+/tcp$", resolved, re.MULTILINE)
    assert sorted(published) == [("127.0.0.1", port) for port in ("3000", "4318", "9090")]


def test_data_sources_are_services_on_the_ports_where_they_listen(dashboards: Path) -> None:
    """Grafana's data sources are service names of the compose file, on the configured ports."""
    sources = (dashboards / "provisioning" / "datasources" / "hicache-dbg.yml").read_text()
    services = (dashboards / "compose" / "compose.yml").read_text()
    tempo = (dashboards / "compose" / "tempo.yml").read_text()
    urls = dict(re.findall(r"url: http://(\w+):(\d+)", sources))
    for name in urls:
        assert re.search(rf"^  {name}:$", services, re.MULTILINE), name
    assert urls == {
        "prometheus": re.search(r'"127.0.0.1:\d+:(9090)"', services).group(1),  # type: ignore[union-attr]
        "tempo": re.search(r"http_listen_port: (\d+)", tempo).group(1),  # type: ignore[union-attr]
    }
    assert "endpoint: 0.0.0.0:4318" in tempo
    assert "127.0.0.1:4318:4318" in services


def test_tempo_may_write_where_it_is_told_to(dashboards: Path) -> None:
    """Its image has a user of its own, to whom a plain folder of the container does not belong."""
    services = (dashboards / "compose" / "compose.yml").read_text()
    (writable,) = re.findall(r'tmpfs: \["([^:"]+)', services.partition("  tempo:")[2])
    told = re.findall(
        r"^ +path: (\S+)$", (dashboards / "compose" / "tempo.yml").read_text(), re.MULTILINE
    )
    assert len(told) == 2
    assert all(Path(path).is_relative_to(writable) for path in told)


def test_whoever_looks_may_follow_an_exemplar_to_its_trace(dashboards: Path) -> None:
    """Grafana shows traces in Explore, and a viewer may not open it."""
    services = (dashboards / "compose" / "compose.yml").read_text()
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE: Editor\n" in services


def test_prometheus_drops_only_what_nothing_asks_for(dashboards: Path) -> None:
    """The compose file's Prometheus leaves out when each series began, and nothing else of ours."""
    configuration = (dashboards / "compose" / "prometheus.yml").read_text()
    (pattern,) = re.findall(r"regex: (\S+)\n +action: drop", configuration)
    dropped = {name for name in vocabulary() if re.fullmatch(pattern, name)}
    assert "hicache_dbg_copies_created" in dropped
    assert {name for name in vocabulary() if name.endswith("_created")} == dropped
    asked = {
        name
        for path in (*dashboards.glob("grafana/*.json"), *dashboards.glob("prometheus/*.yml"))
        for name in names_in(path.read_text())
    }
    assert not asked & dropped


def test_links_between_data_sources_name_one_that_exists(dashboards: Path) -> None:
    """An exemplar links to a data source by its uid."""
    sources = (dashboards / "provisioning" / "datasources" / "hicache-dbg.yml").read_text()
    uids = set(re.findall(r"^ +uid: (\w+)$", sources, re.MULTILINE))
    assert set(re.findall(r"datasourceUid: (\w+)", sources)) == {"tempo"} <= uids


def test_grafana_finds_the_dashboards_where_they_are_mounted(dashboards: Path) -> None:
    """The provider's path is the path that the compose file mounts the dashboards at."""
    provider = (dashboards / "provisioning" / "dashboards" / "hicache-dbg.yml").read_text()
    (path,) = re.findall(r"path: (\S+)", provider)
    assert f"../grafana:{path}:ro" in (dashboards / "compose" / "compose.yml").read_text()


@pytest.mark.service
@pytest.mark.parametrize("drop_in", DROP_INS)
def test_systemd_knows_every_setting_of_a_drop_in(
    tmp_path: Path, dashboards: Path, drop_in: str
) -> None:
    """A unit with the drop-in verifies without output; a misspelt setting would be reported."""
    require(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    text = (dashboards / "systemd" / drop_in).read_text()
    assert "Environment=HICACHE_DBG=1\n" in text
    assert verify(tmp_path / "good", text) == ""
    assert "Unknown key" in verify(tmp_path / "bad", text.replace("Log", "Lgo"))


def verify(folder: Path, drop_in: str) -> str:
    """Return systemd's messages about a unit with a drop-in."""
    (folder / "server.service.d").mkdir(parents=True)
    (folder / "server.service").write_text(UNIT)
    (folder / "server.service.d" / "hicache-dbg.conf").write_text(drop_in)
    command = ["systemd-analyze", "verify", "--man=no", str(folder / "server.service")]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.service
def test_journald_knows_every_setting_of_the_namespace(dashboards: Path) -> None:
    """A journald of that namespace starts with the configuration and reports nothing."""
    require(JOURNALD.exists(), "systemd-journald is not installed")
    require(os.geteuid() == 0, "a journal namespace needs root")
    name = f"hicache{os.getpid()}"
    text = (dashboards / "systemd" / "journald@hicache.conf").read_text()
    assert complaints(name, text) == []
    assert complaints(name, text.replace("RateLimit", "RatLimit")) != []


def complaints(namespace: str, configuration: str) -> list[str]:
    """Return journald's messages about its configuration, which it reads before its socket answers."""
    path = Path(f"/etc/systemd/journald@{namespace}.conf")
    folder = Path(f"/run/systemd/journal.{namespace}")
    path.write_text(configuration + "Storage=volatile\n")
    environ = os.environ | {"SYSTEMD_LOG_TARGET": "console"}
    command = [str(JOURNALD), namespace]
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as daemon:
            deadline = time.monotonic() + WAIT_S
            while not socket_answers(folder / "socket") and time.monotonic() < deadline:
                time.sleep(0.01)
            daemon.terminate()
            _, said = daemon.communicate(timeout=WAIT_S)
    finally:
        path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        for store in Path("/run/log/journal").glob(f"*.{namespace}"):
            shutil.rmtree(store)
    return [line for line in said.splitlines() if str(path) in line]
