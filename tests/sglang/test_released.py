"""Run the tests of tests/sglang/released with each release of SGLang, in its environment."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.services import require
from tests.sglang import prepare

HERE = Path(__file__).parent


@pytest.mark.service
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", prepare.versions())
def test_a_release_as_it_is_on_pypi(version: str) -> None:
    """Every test of tests/sglang/released passes with this release on the path."""
    require(prepare.ready(version), f"SGLang {version} is not set up (make sglang)")
    # What it prints goes where this test's own output goes, so that it is shown however this ends. A test that
    # hangs in there is ended by its own timeout, well before this one's.
    options = ["-q", "-o", "timeout=180"]
    done = subprocess.run(
        [str(prepare.python()), "-m", "pytest", *options, str(HERE / "released")],
        env=os.environ | {"PYTHONPATH": f"{prepare.search_path(version)}:{HERE}"},
        cwd=prepare.ROOT,
        check=False,
    )
    assert done.returncode == 0
