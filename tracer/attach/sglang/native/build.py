"""Compile the helper with this machine's C compiler, once, as Triton does with its launchers."""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from hicache_dbg.tracer.settings import Native

__all__ = ["Unavailable", "built", "folder", "module", "state", "wanted"]

NAME = "hicache_dbg_native"
HERE = Path(__file__).parent
FLAGS = ("-O2", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
#: How long a compiler may take, in seconds; on an idle core it takes one or two.
LIMIT_S = 60


class Unavailable(RuntimeError):  # noqa: N818 - no fault
    """There is no compiled helper; the message says why."""


def wanted(native: Native) -> ModuleType | None:
    """Return the helper if the settings want one here, or None.

    Raises:
        Unavailable: If they do, and there is none.
    """
    if native is Native.OFF or (native is Native.AUTO and not _has_driver()):
        return None
    return module()


def state(native: Native) -> str:
    """Return in a few words whether there is a helper here, or why not; changes nothing."""
    if native is Native.OFF:
        return "off"
    if native is Native.AUTO and not _has_driver():
        return "none, no CUDA driver"
    try:
        path = _target(_place())
    except Unavailable as error:
        return f"none, {error}"
    if path.exists():
        return str(path)
    return f"none, {why}" if (why := _missing()) else "compiled at SGLang's first start"


def _has_driver() -> bool:
    """Return whether this machine has a CUDA driver; loading it initializes nothing."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@cache
def module() -> ModuleType:
    """Return the helper, compiled now if it is not in the user's cache.

    Raises:
        Unavailable: If it cannot be compiled or loaded here.
    """
    path = built(folder())
    loader = ExtensionFileLoader(NAME, str(path))
    spec = spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None  # noqa: S101 - the loader is given
    try:
        made = module_from_spec(spec)
        loader.exec_module(made)
    except ImportError as error:
        path.unlink(missing_ok=True)  # it may be damaged: the next start compiles it again
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    return made


def folder() -> Path:
    """Return the user's cache folder, which nobody else can write.

    Raises:
        Unavailable: If there is none, or it is not the user's alone.
    """
    path = _place()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = path.lstat()
    except OSError as error:
        raise Unavailable(f"no cache folder: {error}") from error
    alone = known.st_uid == os.geteuid() and not known.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not alone or not stat.S_ISDIR(known.st_mode):
        raise Unavailable(f"{path}: expected a folder that only this user can write")
    return path


def _place() -> Path:
    """Return where the cache folder is, or would be."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        path = (named if named.is_absolute() else Path.home() / ".cache") / "hicache-dbg"
    except RuntimeError as error:  # a container's user may have no home
        raise Unavailable(f"no cache folder: {error}") from error
    if not path.is_absolute():
        raise Unavailable(f"no cache folder: this user's home is {path.parent.parent}")
    return path


def built(cache_folder: Path) -> Path:
    """Return the compiled helper in ``cache_folder``, compiling it if it is not there.

    Raises:
        Unavailable: If there is no compiler, no header of Python's, or compiling fails.
    """
    target = _target(cache_folder)
    if not target.exists():
        _compile(target)
    return target


def _target(cache_folder: Path) -> Path:
    """Return the helper's file, whose name distinguishes it from every other one."""
    told = hashlib.sha256()
    for path in sorted(HERE.glob("*.[ch]")):
        told.update(path.read_bytes())
    told.update(repr((FLAGS, sysconfig.get_config_var("SOABI"), _include())).encode())
    return cache_folder / f"{NAME}-{told.hexdigest()[:24]}.so"


def _missing() -> str:
    """Return what compiling lacks here, or nothing."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no GIL, which the helper relies on"
    if not Path(_include(), "Python.h").exists():
        return f"no Python.h in {_include()}: install this Python's development files"
    return "" if any(_compilers()) else "no C compiler (CC, cc, gcc or clang)"


def _include() -> str:
    return sysconfig.get_paths()["include"]


def _compilers() -> Iterator[str]:
    names = dict.fromkeys((os.environ.get("CC", ""), "cc", "gcc", "clang"))
    yield from filter(shutil.which, filter(None, names))


def _compile(target: Path) -> None:
    """Compile with the first compiler that can; readers see the whole file or none."""
    if why := _missing():
        raise Unavailable(why)
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    for compiler in _compilers():
        try:
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                made = Path(scratch, target.name)
                why = _run([compiler, *FLAGS, f"-I{_include()}", *sources, "-o", str(made)])
                if not why:
                    _sync(made)
                    made.replace(target)
                    return
        except subprocess.TimeoutExpired as error:  # a busy machine: another one takes as long
            raise Unavailable(f"{compiler}: not done after {LIMIT_S} s") from error
        except OSError as error:
            why = str(error)
        why = f"{compiler}: {why}"
    raise Unavailable(why)


def _sync(path: Path) -> None:
    """Write a file to the disk: after a power cut, half of it would crash the process that loads it."""
    with path.open("rb") as made:
        os.fsync(made.fileno())


def _run(command: list[str]) -> str:
    """Run a compiler; return why it failed, or nothing."""
    done = subprocess.run(  # noqa: S603 - the compiler of this machine
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    made = Path(command[-1])
    if done.returncode == 0 and made.exists() and made.stat().st_size:
        return ""
    return next(iter(done.stderr.splitlines()), f"exit status {done.returncode}")
