"""The installed package: sdist and wheel hold every subpackage, and claim no other name."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBPACKAGES = ("tracer", "pools", "exporters", "dashboards", "repro")
IMPORT_ALL = """
import importlib, importlib.util, pkgutil
import hicache_dbg

for name in ("tracer", "pools", "exporters", "dashboards", "repro", "tests"):
    assert importlib.util.find_spec(name) is None, f"{name} is importable by its bare name"
names = [module.name for module in pkgutil.walk_packages(hicache_dbg.__path__, "hicache_dbg.")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # GPU kernels need triton, which a CPU build of torch does not bring; so may SGLang be absent.
        if error.name.partition(".")[0] not in ("triton", "sglang"):
            raise
print(len(names), hicache_dbg.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, as an installer without a wheel would build it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_sdist_and_wheel_hold_the_same_modules(wheel: Path) -> None:
    """No module is lost between the symlinked source tree, the sdist and the wheel."""
    sdist = next(wheel.parent.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        packed = {
            name.partition("/src/")[2] for name in archive.getnames() if "/src/hicache_dbg/" in name
        }
    with zipfile.ZipFile(wheel) as archive:
        built = {name for name in archive.namelist() if name.startswith("hicache_dbg/")}
    assert {name for name in packed if name.endswith((".py", ".typed"))} == {
        name for name in built if name.endswith((".py", ".typed"))
    }
    for package in SUBPACKAGES:
        assert f"hicache_dbg/{package}/__init__.py" in built
    sources = {
        f"hicache_dbg/{path.relative_to(ROOT)}"
        for package in SUBPACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= built


def test_the_wheel_imports_in_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    """Every subpackage imports, and no folder of ours is importable by its bare name."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # noqa: S202 - our own wheel, built a moment ago
    # The dependencies come from this environment; a path entry, unlike a site folder, reads no
    # .pth file, so an editable install of ours does not shine through.
    environ = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        [python, "-c", IMPORT_ALL],
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    count, where = done.stdout.split()
    assert int(count) > 50
    assert Path(where).is_relative_to(tmp_path)
