"""``hicache-dbg repro`` over every pool set and layout."""

import json
from typing import Any

import pytest
import torch

from hicache_dbg.pools.transfer import CopyOp, TransferEngine
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.tracer.cli.main import main

#: Small enough to be quick, with device pools too small for it, so that pages travel.
SMALL = {
    "mla_index_k": ["--sessions", "6", "--ctx", "140", "--device-pages", "8"],
    "mha": ["--sessions", "6", "--ctx", "140", "--device-pages", "8"],
    "deepseek_v4": ["--sessions", "4", "--ctx", "530", "--device-pages", "4"],
}
REPLIES = ["--rounds", "2", "--max-tokens", "10", "--host-pages", "64"]


def small(pools: str, *options: str) -> list[str]:
    """Return the arguments of a small run over a pool set."""
    return ["repro", "--pools", pools, *SMALL[pools], *REPLIES, *options]


def repro(
    capsys: pytest.CaptureFixture[str], pools: str, *options: str
) -> tuple[int, dict[str, Any]]:
    """Return exit code and JSON of a small run."""
    code = main(small(pools, *options, "--json"))
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("pools", "layout", "backend"),
    [
        *((name, layout.value, "") for name, kind in POOL_SETS.items() for layout in kind.layouts),
        ("deepseek_v4", "layer_first", "direct"),
    ],
)
def test_every_pool_set_is_clean_in_each_of_its_layouts(
    capsys: pytest.CaptureFixture[str], pools: str, layout: str, backend: str
) -> None:
    """Pages come back from the host, every tile of every pool is verified, no session differs."""
    code, data = repro(capsys, pools, "--layout", layout, "--io-backend", backend)
    assert code == 0
    assert data["tiers_used"]
    assert (data["sessions"]["corrupted"], data["findings"], data["engine_error"]) == (0, [], "")
    tiles = data["tiles"]
    assert tiles["verified"] > 0
    assert tiles["verified"] + tiles["witnessed"] == tiles["moved"]
    names = {geometry.name for geometry in POOL_SETS[pools].geometries("bf16")}
    assert {(path["pool"], path["op"]) for path in data["paths"]} == {
        (name, op) for name in names for op in ("backup", "load")
    }
    assert {path["layout"] for path in data["paths"]} == {layout}


@pytest.mark.parametrize("fault", ["host_sized_for_fp8", "fix_on_dead_class"])
def test_the_fault_is_found_in_the_indexer_of_deepseek_v4(
    capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """Of five pools under one anchor, only the mis-sized one is named."""
    code, data = repro(capsys, "deepseek_v4", "--fault", fault)
    assert code == 1
    assert data["sessions"]["corrupted"] > 0
    assert {(f["class"], f["pool"]) for f in data["findings"]} == {
        ("row_width", "deepseek_v4_c4_indexer")
    }
    for words in ("8448", "16384", "slots 33..63 of each page are never copied"):
        assert words in data["findings"][0]["message"]


def test_the_formula_is_right_for_an_fp8_indexer(capsys: pytest.CaptureFixture[str]) -> None:
    """The clean twin: 8,448 B a page at both ends."""
    code, data = repro(
        capsys, "deepseek_v4", "--fault", "host_sized_for_fp8", "--index-dtype", "fp8"
    )
    assert (code, data["sessions"]["corrupted"], data["findings"]) == (0, 0, [])


def test_the_line_of_the_story_comes_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup of two pages is 512 indices in each compressed pool, 256 per page."""
    monkeypatch.setenv("HICACHE_DBG_SINKS", "stderr")
    monkeypatch.setenv("HICACHE_DBG_LINES", "all")
    assert main(small("deepseek_v4")) == 0
    lines = capsys.readouterr().err.splitlines()
    for pool in ("deepseek_v4_c128", "deepseek_v4_c4"):
        assert (
            f"[HICACHE_DBG] pool={pool} op=backup token_granular=False layout=page_first "
            "h=512 d=512 slot_page=256"
        ) in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("deepseek_v4", "--layout", "page_head"),
            "layout is 'page_head', expected one of layer_first, page_first, page_first_direct",
        ),
        (
            ("mha", "--layout", "page_head", "--io-backend", "direct"),
            "io_backend is 'direct', expected kernel for layout page_head",
        ),
        (("mha", "--fault", "host_sized_for_fp8"), "none of these pools holds any: mha"),
        (("mha", "--device", "npu"), "device is 'npu', expected one of cpu, cuda"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    """Exit 2, with the given value and the allowed ones."""
    assert main(small(*options)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_missing_device_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 if CUDA is requested and not available."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(small("mha", "--device", "cuda")) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "finds no CUDA device here; use --device cpu" in line


def test_a_copy_that_failed_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed backup that no session waited for still makes the run unclean, with the reason."""

    def fail(_self: TransferEngine, _op: CopyOp) -> None:
        raise OSError("the cable is out")

    monkeypatch.setattr(TransferEngine, "backup", fail)
    assert main(small("mha")) == 1
    assert "the cable is out" in capsys.readouterr().out
    code, data = repro(capsys, "mha")
    assert code == 1
    assert "the cable is out" in data["engine_error"]
