"""Set up released SGLang versions for tests on a CPU: python tests/sglang/prepare.py [VERSION ...].

One virtual environment holds the dependencies of SGLang's memory pools; each released wheel is
unpacked into its own folder beside it, and a test run puts one of them on its path. Nothing needs a
GPU: no torch with CUDA, no compiled kernels. Running it again does nothing.
"""

import hashlib
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"
ENVIRONMENT = FOLDER / "sglang"
STUBS = FOLDER / "sglang-stubs"
HERE = Path(__file__).parent

#: The oldest that is supported, the last without a transfer engine, and the newest.
VERSIONS = ("0.5.13", "0.5.17", "0.5.23")

#: The wheels carry compiled parts for one Python; the pools are Python and run on any.
WHEEL_OF = ("--python-version=3.11", "--implementation=cp", "--abi=cp311")
PLATFORM = "--platform=manylinux_2_34_x86_64"

#: SGLang's image models import torchvision, whose wheels need a CUDA build of torch.
ANYTHING = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None
"""
MODES = """
from enum import Enum

InterpolationMode = Enum(
    "InterpolationMode", "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
)
"""
TORCHVISION = {
    "__init__.py": '__version__ = "0.28.0"\n',
    "io.py": ANYTHING,
    "transforms/__init__.py": MODES + ANYTHING,
    "transforms/functional.py": ANYTHING,
    "transforms/v2/__init__.py": ANYTHING,
    "transforms/v2/functional.py": ANYTHING,
}


def python() -> Path:
    """Return the interpreter of the environment."""
    return ENVIRONMENT / "bin" / "python"


def wheel_folder(version: str) -> Path:
    """Return the folder of a version's unpacked wheel."""
    return FOLDER / f"sglang-{version}"


def search_path(version: str) -> str:
    """Return the PYTHONPATH that makes ``import sglang`` import this version."""
    return f"{wheel_folder(version)}:{STUBS}"


def ready(version: str) -> bool:
    """Return whether everything for this version is in place."""
    return _stamp(ENVIRONMENT).is_file() and _stamp(wheel_folder(version)).is_file()


def versions() -> list[str]:
    """Return the versions that are always tested, and any other that was unpacked."""
    found = {folder.name.removeprefix("sglang-") for folder in FOLDER.glob("sglang-0.*")}
    return sorted(found | set(VERSIONS))


def main(wanted: Sequence[str]) -> None:
    """Create what is missing."""
    FOLDER.mkdir(exist_ok=True)
    _environment()
    _write_stubs()
    for version in wanted:
        _unpack(version)


def _stamp(folder: Path) -> Path:
    return folder / ".ready"


def _environment() -> None:
    requirements = HERE / "requirements.txt"
    wanted = "".join(
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (requirements, ROOT / "pyproject.toml")
    )
    stamp = _stamp(ENVIRONMENT)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    pip = (str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--upgrade", "pip>=25.1")
    _run(*pip, "-r", str(requirements))
    _run(
        *pip,
        "-r",
        str(requirements),
        "-e",
        f"{ROOT}[cli]",
        "--group",
        f"{ROOT}/pyproject.toml:test",
    )
    stamp.write_text(wanted)


def _write_stubs() -> None:
    for name, text in TORCHVISION.items():
        path = STUBS / "torchvision" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _unpack(version: str) -> None:
    folder = wheel_folder(version)
    if _stamp(folder).is_file():
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as place:
        _run(
            *(str(python()), "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", *WHEEL_OF, PLATFORM, "-d", place),
            f"sglang=={version}",
        )
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if not n.endswith(".so")])
    _stamp(folder).touch()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:] or VERSIONS)
