"""Run the tests of tests/sglang/released with each release of SGLang, in its environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.services import require
from tests.sglang import prepare

HERE = Path(__file__).parent


@pytest.mark.service
@pytest.mark.parametrize("version", prepare.versions())
def test_a_release_as_it_is_on_pypi(version: str) -> None:
    """Every test of tests/sglang/released passes with this release on the path."""
    require(prepare.ready(version), f"SGLang {version} is not set up (make sglang)")
    done = subprocess.run(
        [str(prepare.python()), "-m", "pytest", "-q", str(HERE / "released")],
        env=os.environ | {"PYTHONPATH": f"{prepare.search_path(version)}:{HERE}"},
        cwd=prepare.ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    sys.stdout.write(done.stdout[-20000:])
    assert done.returncode == 0, done.stdout[-4000:]
