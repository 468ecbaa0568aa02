"""The known host pool classes: how to read each, and which pages its calls move."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hicache_dbg.tracer.attach.sglang import page_geometry, paths, row_geometry, state_geometry
from hicache_dbg.tracer.attach.sglang.geometry import Geometry
from hicache_dbg.tracer.attach.sglang.paths import Rule
from hicache_dbg.tracer.attach.sglang.versions import ANY, Versions

__all__ = [
    "ARGUMENTS",
    "BACKUP",
    "BACKUP_TOKENS",
    "KINDS",
    "LOAD",
    "Kind",
    "known_classes",
    "methods_of",
]

BACKUP = "backup_from_device_all_layer"
BACKUP_TOKENS = "backup_tokens_from_device_all_layer"
LOAD = "load_to_device_per_layer"
PHYSICAL = "_physical"

#: The argument names of each method, in order.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    BACKUP_TOKENS: ("host_indices", "device_indices"),
    **dict.fromkeys(
        (BACKUP, BACKUP + PHYSICAL), ("device_pool", "host_indices", "device_indices", "io_backend")
    ),
    **dict.fromkeys(
        (LOAD, LOAD + PHYSICAL),
        ("device_pool", "host_indices", "device_indices", "layer_id", "io_backend"),
    ),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One host pool class.

    Args:
        read: reads both ends off a pool, under a name.
        rules: which pages a call moves, by the method's name.
        name: the pool's name if it has none of its own.
        versions: the versions of SGLang in which the class exists.
    """

    read: Callable[[Any, str], Geometry]
    rules: Mapping[str, Rule]
    name: str
    versions: Versions = field(default=ANY)


def _by(rule: Rule) -> dict[str, Rule]:
    return {BACKUP: rule, LOAD: rule}


ROWS = _by(paths.rows)
BY_LENGTH = {**_by(paths.by_length), BACKUP_TOKENS: paths.tokens}
FIRST_OF_RUN = _by(paths.first_of_run)
WHOLE_PAGES = _by(paths.whole_pages)
#: The common backup method calls the physical one, which takes page ids; the load method does not.
PAGE_IDS = {
    BACKUP + PHYSICAL: paths.page_ids,
    LOAD + PHYSICAL: paths.page_ids,
    LOAD: paths.pages_of_tokens,
}

#: The common methods translate logical page ids, then call the physical methods.
TRANSLATED = {BACKUP + PHYSICAL: paths.first_of_run, LOAD + PHYSICAL: paths.first_of_run}

KINDS: Mapping[str, Kind] = {
    "MHATokenToKVPoolHost": Kind(row_geometry.mha, ROWS, "kv"),
    "AsymmetricMHATokenToKVPoolHost": Kind(row_geometry.mha, ROWS, "kv", Versions("0.5.14")),
    "HiSparseMHATokenToKVPoolHost": Kind(row_geometry.mha, ROWS, "kv", Versions("0.5.21")),
    "MHATokenToKVPoolMXFP8Host": Kind(
        row_geometry.mha_mxfp8, WHOLE_PAGES, "kv", Versions("0.5.22")
    ),
    "MHATokenToKOnlyPoolHost": Kind(row_geometry.mha_k_only, ROWS, "indexer", Versions("0.5.15")),
    "MLATokenToKVPoolHost": Kind(row_geometry.mla, ROWS, "kv"),
    "MambaPoolHost": Kind(state_geometry.mamba, ROWS, "mamba"),
    "DSAIndexerPoolHost": Kind(page_geometry.dsa, FIRST_OF_RUN, "indexer"),
    "DeepSeekV4PagedHostPool": Kind(page_geometry.v4_pages, BY_LENGTH, "deepseek_v4"),
    "DeepSeekV4StateHostPool": Kind(page_geometry.v4_state, FIRST_OF_RUN, "deepseek_v4_state"),
    "QSAIndexerPoolHost": Kind(
        page_geometry.v4_pages, BY_LENGTH, "qsa_indexer", Versions("0.5.22")
    ),
    "UnifiedPageEnvelopeHostPool": Kind(
        page_geometry.envelopes, TRANSLATED, "kv", Versions("0.5.22")
    ),
    "MiniMaxM3Nvfp4IndexKPoolHost": Kind(
        page_geometry.nvfp4, PAGE_IDS, "indexer", Versions("0.5.23")
    ),
    "MiniMaxM3Nvfp4MainKVPoolHost": Kind(page_geometry.nvfp4, PAGE_IDS, "kv", Versions("0.5.23")),
}


def methods_of(cls: str) -> tuple[str, ...]:
    """Return the methods of a class that move bytes; for an unknown class, every known name."""
    kind = KINDS.get(cls)
    return tuple(kind.rules if kind else ARGUMENTS)


def known_classes(version: str) -> set[str]:
    """Return the names of the known classes that exist in ``version``."""
    return {name for name, kind in KINDS.items() if version in kind.versions}
