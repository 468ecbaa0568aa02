"""Check what works on this machine: one function per subject, each yields the rows of its parts.

The checks change nothing: no folder is created, and ports are bound only for a moment.
"""

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from hicache_dbg import __version__
from hicache_dbg.tracer.cli import doctor_sinks
from hicache_dbg.tracer.cli.doctor_cost import expected_cost
from hicache_dbg.tracer.cli.doctor_parts import Needs, Part, State
from hicache_dbg.tracer.settings import Settings, SettingsError

__all__ = ["SYSTEMS", "examine"]

PINNED_TRIAL_BYTES = 1 << 20

#: Systems whose caches may be in use here, and what our optional parts need.
SYSTEMS = ("sglang", "vllm", "lmcache", "mooncake-transfer-engine")
#: Those of them whose caches are not traced: mentioned only if they are installed.
NOT_TRACED = ("vllm", "lmcache")
LIBRARIES = ("triton", "numpy", "opentelemetry-sdk", "prometheus-client", "xxhash")
PROGRAMS = ("journalctl", "prometheus", "promtool")


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
    needs = Needs(settings, environ)
    for look in _LOOKS:
        try:
            parts.extend(look(needs))
        except Exception as error:  # noqa: BLE001 - a broken library may raise anything
            name = look.__name__.strip("_")
            parts.append(Part(name, State.MISSING, f"{type(error).__name__}: {error}"))
    return parts


def _versions(_: Needs) -> Iterator[Part]:
    yield Part("hicache-dbg", State.OK, __version__)
    yield Part("python", State.OK, f"{platform.python_version()} on {platform.machine()}")
    yield Part("kernel", State.OK, platform.release())
    for name in LIBRARIES + SYSTEMS:
        found = _version(name)
        if name not in NOT_TRACED:
            yield Part(name, State.OK if found else State.ABSENT, found or "not installed")
        elif found:
            yield Part(name, State.OK, f"{found}; its caches are not traced")


def _torch(_: Needs) -> Iterator[Part]:
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


def _nvml(_: Needs) -> Iterator[Part]:
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


def _optional(needs: Needs) -> Iterator[Part]:
    extras = {
        "extra otlp": ("opentelemetry.exporter.otlp.proto.http", needs.state_without("otel")),
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


def _cost(_: Needs) -> Iterator[Part]:
    import torch

    yield Part("expected cost", State.OK, expected_cost(gpu=torch.cuda.is_available()))


_LOOKS: tuple[Callable[[Needs], Iterator[Part]], ...] = (
    *(_versions, _torch, _nvml),
    *(doctor_sinks.journald, doctor_sinks.prometheus, doctor_sinks.recordings, doctor_sinks.otlp),
    *(_optional, _cost),
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
