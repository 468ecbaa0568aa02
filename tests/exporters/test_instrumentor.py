"""The real ``opentelemetry-instrument`` command finds us, and the gate still decides."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.exporters.receiver import Receiver, attributes
from tests.services import require

GROUP, NAME = "opentelemetry_instrumentor", "hicache_dbg"
VALUE = "hicache_dbg.tracer.instrumentor:HiCacheDbgInstrumentor"
COMMAND = Path(sys.executable).with_name("opentelemetry-instrument")

#: Older commands end for every library if one distribution lacks the extra.
METADATA = """Metadata-Version: 2.1
Name: hicache-dbg-entry
Version: 0
Provides-Extra: instruments
"""

#: A host that knows nothing of us but the pools.
HOST = """
import os, sys
import numpy as np
from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout
from hicache_dbg.pools.host import LatentHostPool, Mirror, host_geometry_like
from hicache_dbg.pools.kinds import mla
from hicache_dbg.pools.transfer import TransferEngine

pool = DevicePool(mla(2, 64), 8)
mirror = Mirror(pool, LatentHostPool(host_geometry_like(pool), 16, Layout.PAGE_FIRST))
with HiCacheController((mirror,)) as cache:
    tokens = np.arange(128, dtype=np.int32)
    cache.insert(tokens, cache.alloc_device(2))
    cache.flush()
print("hicache_dbg.tracer.runtime" in sys.modules, os.environ.get("HICACHE_DBG_SINKS"))
if "uninstrument" in sys.argv:
    from hicache_dbg.tracer.instrumentor import HiCacheDbgInstrumentor
    before = TransferEngine.backup
    HiCacheDbgInstrumentor().uninstrument()
    HiCacheDbgInstrumentor().uninstrument()
    print(TransferEngine.backup is not before)
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A collector."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def environ(receiver: Receiver, tmp_path: Path) -> dict[str, str]:
    """Point to the collector; add our entry point if the package was not reinstalled yet."""
    found = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "HICACHE_DBG_JOURNALD_SOCKET": str(tmp_path / "absent"),
    }
    if not entry_points(group=GROUP, name=NAME):
        info = tmp_path / "hicache_dbg_entry-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA)
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {VALUE}\n")
        found["PYTHONPATH"] = str(tmp_path)
    return found


def run(environ: dict[str, str], *arguments: str, **more: str) -> list[str]:
    """Start the host with the command and return its lines."""
    require(COMMAND.exists() or shutil.which("opentelemetry-instrument"), "it is not installed")
    command = [str(COMMAND), sys.executable, "-c", HOST, *arguments]
    done = subprocess.run(command, env=environ | more, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.service
def test_under_the_command_the_gate_is_all_it_takes(
    receiver: Receiver, environ: dict[str, str]
) -> None:
    """With HICACHE_DBG=1 the host's copies arrive at the collector, beside the default sinks."""
    (told,) = run(environ, HICACHE_DBG="1")
    assert told == "True stderr,prometheus,otel"
    pools = {attributes(span)["hicache.pool"] for span in receiver.spans}
    assert len(pools) == 1
    assert [span.name for span in receiver.spans] == ["hicache.backup"]


@pytest.mark.service
@pytest.mark.parametrize("gate", ["", "0"])
def test_without_the_gate_the_command_changes_nothing(
    receiver: Receiver, environ: dict[str, str], gate: str
) -> None:
    """With the gate unset or off nothing of ours is wrapped, sent or selected."""
    assert run(environ, HICACHE_DBG=gate) == ["False None"]
    assert not receiver.spans


@pytest.mark.service
def test_sinks_that_were_chosen_stay(receiver: Receiver, environ: dict[str, str]) -> None:
    """The command adds nothing to the operator's HICACHE_DBG_SINKS."""
    (told,) = run(environ, HICACHE_DBG="1", HICACHE_DBG_SINKS="stderr")
    assert told == "True stderr"
    assert not receiver.spans


@pytest.mark.service
def test_it_can_be_left_out_by_name(receiver: Receiver, environ: dict[str, str]) -> None:
    """OTEL_PYTHON_DISABLED_INSTRUMENTATIONS can disable us like any other."""
    (told,) = run(environ, HICACHE_DBG="1", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=NAME)
    assert told == "True None"
    assert not receiver.spans


@pytest.mark.service
def test_uninstrumenting_restores_the_engine(receiver: Receiver, environ: dict[str, str]) -> None:
    """Afterwards the engine's own function is bound again, and pending events have arrived."""
    _, restored = run(environ, "uninstrument", HICACHE_DBG="1")
    assert restored == "True"
    assert len(receiver.spans) == 1
