"""The helper is compiled once, where only its user can write, and whatever is missing is said."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.services import require

from hicache_dbg.tracer.attach.sglang.native import build
from hicache_dbg.tracer.attach.sglang.native.build import Unavailable
from hicache_dbg.tracer.settings import Native
from hicache_dbg.tracer.switch.client import GRACE_S


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return build.folder()


@pytest.fixture
def compiler() -> None:
    """A C compiler and Python's headers."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    require(header.exists() and any(build._compilers()), "no C compiler, or no Python.h")


@pytest.mark.service
@pytest.mark.usefixtures("compiler")
def test_it_compiles_once_and_without_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time the file is there already; a changed flag is another file."""
    strict = ("-Wconversion", "-Wshadow", "-Werror")
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, *strict))
    made = build.built(folder)
    before = made.stat()
    assert build.built(folder) == made
    assert made.stat() == before
    assert list(folder.iterdir()) == [made]  # nothing temporary stays
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O1"))
    assert build.built(folder) != made


@pytest.mark.service
@pytest.mark.usefixtures("compiler")
def test_a_compiler_that_fails_gives_way_to_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CC may name one for another machine."""
    monkeypatch.setenv("CC", "false")
    assert build.built(folder).exists()


def test_what_a_compiler_says_in_another_encoding_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a reason like any other."""
    compiler = tmp_path / "odd"
    compiler.write_text("#!/bin/sh\nprintf 'fatal: \\377 broken' >&2; exit 1\n")
    compiler.chmod(0o700)
    assert build._run([str(compiler), str(folder / "none")]) == "fatal: \ufffd broken"


def test_the_command_that_switches_on_waits_for_the_compiler() -> None:
    """Otherwise it would say that nobody answers, and tracing would go on."""
    assert GRACE_S > build.LIMIT_S


def test_without_a_compiler_the_reason_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unavailable, match=r"no C compiler|no Python\.h"):
        build.built(folder)
    assert list(folder.iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no helper."""

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("cc", build.LIMIT_S)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(Unavailable):
        build.built(folder)


def test_a_folder_that_others_can_write_is_refused(folder: Path) -> None:
    """Whoever can write there could run code in SGLang."""
    folder.chmod(0o770)
    with pytest.raises(Unavailable, match="only this user"):
        build.folder()


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its owner could point it elsewhere."""
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        build.folder()


def test_a_relative_cache_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the specification of XDG_CACHE_HOME says."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.folder() == tmp_path / ".cache" / "hicache-dbg"


def test_a_damaged_file_is_not_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes, so that the next start compiles."""
    damaged = folder / "damaged.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setattr(build, "built", lambda _: damaged)
    with pytest.raises(Unavailable, match="cannot be loaded"):
        build.module.__wrapped__()
    assert not damaged.exists()


@pytest.mark.skipif(build._has_driver(), reason="has a CUDA driver")
def test_without_a_driver_nothing_is_compiled_unless_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where it is switched off."""
    monkeypatch.setattr(build, "module", lambda: pytest.fail("compiled"))
    assert build.wanted(Native.AUTO) is None
    assert build.wanted(Native.OFF) is None
    assert [build.state(native) for native in (Native.AUTO, Native.OFF)] == [
        "none, no CUDA driver",
        "off",
    ]
    assert os.listdir(folder) == []  # noqa: PTH208


def test_asking_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor asks: neither a folder nor a file comes of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_missing", str)
    assert build.state(Native.ON) == "compiled at SGLang's first start"
    monkeypatch.setattr(build, "_missing", lambda: "no C compiler")
    assert build.state(Native.ON) == "none, no C compiler"
    assert list(tmp_path.iterdir()) == []
