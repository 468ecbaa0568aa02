# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Every host pool class, layout and io backend that the SGLang on the path has."""

from collections.abc import Callable
from typing import Any

from released_base import NUMBER, Case, Setup
from released_mxfp8 import mxfp8
from released_pages import index_k, mamba, mamba_beside, nvfp4, nvfp4_main, qsa, v4, v4_state
from released_rows import asymmetric, k_only, mha, mla, mla_sharded

__all__ = ["CASES"]

_FOUR = (
    ("layer_first", "kernel"),
    ("layer_first", "direct"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
)
_TABLE: tuple[
    tuple[str, Callable[[str], Setup], tuple[tuple[str, str], ...], dict[str, Any]], ...
] = (
    ("mha", mha, (*_FOUR, ("page_head", "kernel")), {"components": 2}),
    ("asymmetric", asymmetric, _FOUR[2:], {"components": 2, "since": 14}),
    ("mxfp8", mxfp8, _FOUR[2:3], {"components": 4, "since": 22}),
    ("mla", mla, _FOUR, {}),
    ("mla_sharded", mla_sharded, _FOUR[:1], {"since": 17}),
    ("index_k", index_k, _FOUR, {}),
    ("c4", v4("deepseek_v4_c4", 37440, 256), _FOUR, {}),
    ("c128", v4("deepseek_v4_c128", 1728, 256), _FOUR, {}),
    ("c4_indexer", v4("deepseek_v4_c4_indexer", 8448, 256), _FOUR, {}),
    ("swa", v4("swa", 149760, 256), _FOUR[2:3], {}),
    ("c4_state", v4_state, _FOUR, {}),
    ("mamba", mamba, _FOUR[3:], {"components": 2}),
    ("mamba", mamba, _FOUR[2:3], {"components": 2, "since": 16}),
    ("mamba", mamba, _FOUR[2:3], {"components": 2, "until": 13}),
    ("mamba", mamba, _FOUR[:1], {"components": 2, "until": 13}),
    ("mamba_beside", mamba_beside, _FOUR[2:], {"components": 4, "since": 22}),
    ("k_only", k_only, _FOUR, {"since": 15}),
    ("nvfp4", nvfp4, tuple((layout, "kernel") for layout, _ in _FOUR[1:]), {"since": 23}),
    ("nvfp4_main", nvfp4_main, (("page_first", "kernel"),), {"since": 23}),
    ("qsa", qsa, _FOUR, {"since": 22}),
)

#: Every class, layout and backend that this version has.
CASES: tuple[Case, ...] = tuple(
    case
    for name, build, layouts, given in _TABLE
    for case in (Case(name, build, layout, backend, **given) for layout, backend in layouts)
    if case.since <= NUMBER[2] <= case.until
)
