"""Check what works on this machine: one function per part, each yields rows.

The checks change nothing: no folder is created, and ports are bound only for a moment.
"""

import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from urllib.parse import urlsplit

from hicache_dbg import __version__
from hicache_dbg.tracer.cli.doctor_cost import expected_cost
from hicache_dbg.tracer.settings import Settings, SettingsError
from hicache_dbg.tracer.sinks import socket_answers

__all__ = ["Part", "State", "examine"]

CONNECT_WAIT_S = 1.0
PINNED_TRIAL_BYTES = 1 << 20
LAST_PORT = 65535

#: Systems whose caches may be in use here, and what our optional parts need.
SYSTEMS = ("sglang", "vllm", "lmcache", "mooncake-transfer-engine")
#: Those of them whose caches are not traced: mentioned only if they are installed.
NOT_TRACED = ("vllm", "lmcache")
LIBRARIES = ("triton", "numpy", "opentelemetry-sdk", "prometheus-client", "xxhash")
PROGRAMS = ("journalctl", "prometheus", "promtool")


class State(StrEnum):
    """The state of a part of the environment."""

    OK = "ok"
    ABSENT = "absent"  #: not there, but not required either
    MISSING = "missing"  #: required, and does not work


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the environment: its state, what was found, and what to do."""

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the environment requires; the settings are the defaults if they can't be parsed."""

    settings: Settings
    environ: Mapping[str, str]

    def unless(self, sink: str) -> State:
        """Return the state of a broken part that only ``sink`` needs."""
        return State.MISSING if sink in (self.settings.sinks or ()) else State.ABSENT


def examine(environ: Mapping[str, str] = os.environ) -> list[Part]:
    """Check every part; a check that raises yields a missing part, never an exception."""
    parts = []
    try:
        settings = Settings.from_environ(environ)
        shown = f"{settings.gate}, checksum {settings.checksum}"
        parts.append(Part("gate", State.OK, shown))
    except SettingsError as error:
        settings = Settings()
        parts.append(Part("gate", State.MISSING, str(error), "correct the variable"))
    asked = _Asked(settings, environ)
    for look in _LOOKS:
        try:
            parts.extend(look(asked))
        except Exception as error:  # noqa: BLE001 - a broken library may raise anything
            name = look.__name__.strip("_")
            parts.append(Part(name, State.MISSING, f"{type(error).__name__}: {error}"))
    return parts


def _versions(_: _Asked) -> Iterator[Part]:
    yield Part("hicache-dbg", State.OK, __version__)
    yield Part("python", State.OK, f"{platform.python_version()} on {platform.machine()}")
    yield Part("kernel", State.OK, platform.release())
    for name in LIBRARIES + SYSTEMS:
        found = _version(name)
        if name not in NOT_TRACED:
            yield Part(name, State.OK if found else State.ABSENT, found or "not installed")
        elif found:
            yield Part(name, State.OK, f"{found}; its caches are not traced")


def _torch(_: _Asked) -> Iterator[Part]:
    try:
        import torch
    except ImportError as error:
        yield Part("torch", State.MISSING, f"cannot be imported: {error}", "pip install torch")
        return
    built = torch.version.cuda
    yield Part("torch", State.OK, f"{torch.__version__}, built for CUDA {built or 'none'}")
    if not torch.cuda.is_available():
        why = "the driver shows no GPU" if built else "torch is a CPU build"
        yield Part("gpu", State.ABSENT, f"{why}: device pools lie in host memory")
        yield Part("pinned memory", State.ABSENT, "no CUDA: host pools are pageable")
        return
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        size = f"{gpu.total_memory / 2**30:.0f} GiB"
        yield Part(f"gpu {index}", State.OK, f"{gpu.name}, {size}, compute {gpu.major}.{gpu.minor}")
    yield _pinned()


def _pinned() -> Part:
    import torch

    from hicache_dbg.pools.pinning import pin, unpin

    memory = [torch.empty(PINNED_TRIAL_BYTES, dtype=torch.uint8)]
    state = pin(memory)
    if not state.pinned:
        return Part(
            "pinned memory",
            State.MISSING,
            f"cudaHostRegister of {PINNED_TRIAL_BYTES} B answered {state.return_code}",
            "raise the memory-lock limit (ulimit -l) or the container's memory limit",
        )
    unpin(memory)
    return Part("pinned memory", State.OK, f"{state.bytes} B registered and given back")


def _nvml(_: _Asked) -> Iterator[Part]:
    from hicache_dbg.exporters.nvml import OK, Nvml

    nvml = Nvml()
    if nvml.state != OK:
        yield Part(
            "nvml", State.ABSENT, f"NVML is {nvml.state}: no GPU counters beside the findings"
        )
        return
    gpus = nvml.read()
    refused = sorted({f"{name} {s}" for gpu in gpus for name, s in gpu.states.items() if s != OK})
    yield Part("nvml", State.OK, f"{len(gpus)} GPUs; not readable: {', '.join(refused) or 'none'}")


def _journald(asked: _Asked) -> Iterator[Part]:
    path = asked.settings.journald_socket
    if socket_answers(path):
        yield Part("journald", State.OK, f"{path} answers")
    else:
        yield Part(
            "journald",
            asked.unless("journald"),
            f"{path} does not answer: lines go to standard error",
            "in a container mount the socket, or set HICACHE_DBG_JOURNALD_SOCKET",
        )


def _prometheus(asked: _Asked) -> Iterator[Part]:
    first, ranks = asked.settings.prometheus_port, asked.settings.ranks
    if not first:
        yield Part("prometheus port", State.ABSENT, "HICACHE_DBG_PROMETHEUS_PORT is not set")
        return
    refused = {port: _refused(first.address, port) for port in range(first, first + ranks)}
    if words := [f"{first.address}:{port}: {why}" for port, why in refused.items() if why]:
        advice = "choose another port, or an address of this machine"
        yield Part("prometheus port", State.MISSING, ", ".join(words), advice)
    else:
        shown = str(first) if ranks == 1 else f"{first} to {first + ranks - 1}"
        yield Part("prometheus port", State.OK, f"{first.address}:{shown}: free")


def _recordings(asked: _Asked) -> Iterator[Part]:
    folder = asked.settings.directory
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Part(
            "recordings",
            asked.unless("recording"),
            f"{nearest} is no folder that can be written to",
            "set HICACHE_DBG_DIR",
        )
        return
    free = shutil.disk_usage(nearest).free
    made = "" if folder.exists() else ", made when needed"
    yield Part("recordings", State.OK, f"{folder}{made}, {free / 2**30:.1f} GiB free")


def _otlp(asked: _Asked) -> Iterator[Part]:
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    endpoint = next((asked.environ[name] for name in named if asked.environ.get(name)), "")
    if not endpoint:
        yield Part("otlp endpoint", asked.unless("otel"), f"{named[0]} is not set")
        return
    place = urlsplit(endpoint)
    port = place.port or (443 if place.scheme == "https" else 80)
    shown = f"{place.scheme}://{place.hostname}:{port}"  # without user name and password
    try:
        socket.create_connection((place.hostname or "", port), CONNECT_WAIT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        state = asked.unless("otel")
        yield Part("otlp endpoint", state, f"{shown}: {reason}", "start the collector")
    else:
        yield Part("otlp endpoint", State.OK, f"{shown} answers")


def _optional(asked: _Asked) -> Iterator[Part]:
    extras = {
        "extra otlp": ("opentelemetry.exporter.otlp.proto.http", asked.unless("otel")),
        "extra zstd": ("zstandard", State.ABSENT),
    }
    for name, (module, otherwise) in extras.items():
        if _importable(module):
            yield Part(name, State.OK, "installed")
        else:
            yield Part(
                name,
                otherwise,
                f"{module} is not installed",
                f"pip install 'hicache-dbg[{name.removeprefix('extra ')}]'",
            )
    for program in PROGRAMS:
        place = shutil.which(program)
        yield Part(program, State.OK if place else State.ABSENT, place or "not on PATH")


def _cost(_: _Asked) -> Iterator[Part]:
    import torch

    yield Part("expected cost", State.OK, expected_cost(gpu=torch.cuda.is_available()))


_LOOKS: tuple[Callable[[_Asked], Iterator[Part]], ...] = (
    *(_versions, _torch, _nvml),
    *(_journald, _prometheus, _recordings, _otlp, _optional, _cost),
)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _refused(address: str, port: int) -> str:
    """Return why metrics cannot be served there; empty if they can."""
    if port > LAST_PORT:
        return f"no such port, expected one up to {LAST_PORT}"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return ""
