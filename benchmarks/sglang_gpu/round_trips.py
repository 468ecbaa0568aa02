# mypy: disable-error-code="import-not-found"
"""Round trips of every pool, layout and io backend with the real kernels, verified twice.

Our tiles must say verified, and the bytes must equal those of a copy made beforehand.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from builders import (
    asymmetric,
    index_k,
    k_only,
    mamba,
    mamba_beside,
    mha,
    mla,
    mla_sharded,
    nvfp4,
    qsa,
    v4,
    v4_state,
)
from builders_late import hisparse, mxfp8, unified
from driving import Mover, indices
from setups import NUMBER, Build, Setup, bytes_of
from tracing import Row, Traced, copies, findings

__all__ = ["round_trips"]

FOUR = (
    ("layer_first", "kernel"),
    ("layer_first", "direct"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
)
LAYERS, PAGES, MOVED = 5, 40, 24

#: Name, builder, layouts and backends, components, versions.
CASES: tuple[tuple[str, Build, tuple[tuple[str, str], ...], dict[str, Any]], ...] = (
    ("mha", mha, (*FOUR, ("page_head", "kernel")), {"components": 2}),
    ("asymmetric", asymmetric, FOUR[2:], {"components": 2}),
    ("mla", mla, FOUR, {}),
    ("mla_sharded", mla_sharded, FOUR[:1], {}),
    ("index_k", index_k, FOUR, {}),
    ("c4", v4("deepseek_v4_c4", 37440, 256), FOUR, {}),
    ("c128", v4("deepseek_v4_c128", 1728, 256), FOUR, {}),
    ("c4_indexer", v4("deepseek_v4_c4_indexer", 8448, 256), FOUR, {}),
    ("swa", v4("swa", 149760, 256), FOUR, {}),
    ("c4_state", v4_state, FOUR, {}),
    ("mamba", mamba, FOUR[2:], {"components": 2}),
    ("mamba_beside", mamba_beside, FOUR[2:], {"components": 4, "since": 22}),
    ("k_only", k_only, FOUR, {}),
    ("nvfp4", nvfp4, tuple((layout, "kernel") for layout, _ in FOUR[1:]), {"since": 23}),
    ("qsa", qsa, FOUR, {"since": 22}),
    ("hisparse", hisparse, FOUR[:1], {"components": 2, "since": 23}),
    ("unified", unified, FOUR[2:3], {"since": 23, "pages": PAGES}),
    ("mxfp8", mxfp8, FOUR[2:3], {"components": 4, "since": 22}),
)


@dataclass(frozen=True)
class Case:
    """One pool with one layout and io backend; ``pages`` is the number of host pages, 0 to ask it."""

    name: str
    build: Build
    layout: str
    backend: str
    components: int
    pages: int


def round_trips(only: str = "") -> Iterator[Row]:
    """Yield one row for each pool, layout and backend."""
    traced = Traced()
    for name, build, ways, given in CASES:
        if given.get("since", 0) > NUMBER[2] or (
            only and not any(part in name for part in only.split(","))
        ):
            continue
        for layout, backend in ways:
            parts, pages = given.get("components", 1), given.get("pages", 0)
            yield _row(traced, Case(name, build, layout, backend, parts, pages))
    traced.attachment.detach()


def _row(traced: Traced, case: Case) -> Row:
    name, goal = f"{case.name} {case.layout}/{case.backend}", "verified, 0 findings"
    try:
        setup = case.build(case.layout, LAYERS, PAGES)
    except ImportError as error:  # kernels that came with a later sglang-kernel
        return Row("round trip", name, f"not run: {_said(error)}", "", kept=True)
    except Exception as error:  # noqa: BLE001 - a row, whatever it is
        return Row("round trip", name, f"not built: {_said(error)}", goal, kept=False)
    try:
        result, kept = _there_and_back(traced, setup, case)
    except Exception as error:  # noqa: BLE001 - a row, whatever it is
        result, kept = _said(error), False
    finally:
        setup.destroy()
        del setup
        gc.collect()
        traced.take()
    return Row("round trip", name, result, goal, kept)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


def _there_and_back(traced: Traced, setup: Setup, case: Case) -> tuple[str, bool]:
    traced.take()
    before, errors = [bytes_of(t, setup.rows).clone() for t in setup.devices], traced.errors()
    count = before[0].shape[0]
    generator = torch.Generator().manual_seed(count)
    source, target = (torch.randperm(count, generator=generator)[:MOVED] for _ in range(2))
    pages = case.pages or setup.pool.size // setup.page
    host_pages = torch.randperm(pages, generator=generator)[:MOVED]
    host = indices(host_pages, setup.page)
    mover = Mover(setup, case.backend)
    mover.backup(host, indices(source, setup.page).cuda()).synchronize()
    mover.load(host, indices(target, setup.page).cuda())
    events = traced.take()
    wrong = sum(
        int((bytes_of(t, setup.rows)[target.cuda()] != old[source.cuda()]).any(1).sum())
        for t, old in zip(setup.devices, before, strict=True)
    )
    others = torch.ones(count, dtype=torch.bool)
    others[target] = False
    touched = sum(
        int((bytes_of(t, setup.rows)[others.cuda()] != old[others.cuda()]).any(1).sum())
        for t, old in zip(setup.devices, before, strict=True)
    )
    found, moved = findings(events), copies(events)
    tiles = MOVED * setup.layers * case.components
    seen = [(event.op.value, event.witnessed, event.verified) for event in moved]
    clean = seen == [("backup", tiles, 0), ("load", 0, tiles)]
    failed = {k: v for k, v in traced.errors().items() if errors.get(k) != v}
    kept = clean and not found and not wrong and not touched and not failed
    if kept:
        return f"{tiles} tiles verified, {len(found)} findings", True
    skipped = [event.skipped for event in moved if event.skipped]
    told = [f.message[:160] for f in found]
    return (
        f"{seen} of {tiles}, skipped {skipped}, wrong {wrong}, touched {touched}, {told}, {failed}",
        False,
    )
