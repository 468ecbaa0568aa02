"""Device pools inside device pools: the outer one waits for a layer, the inner ones hold bytes."""

from collections.abc import Iterator
from typing import Any

__all__ = ["inner_layers"]


def inner_layers(pool: Any) -> Iterator[tuple[Any, dict[int, int]]]:
    """Yield each pool inside ``pool``, with a map from its layer numbers to the gate's layers."""
    found: dict[int, tuple[Any, dict[int, int]]] = {}
    for inner, number, layer in (*_hybrid_linear(pool), *_sliding(pool), *_deepseek_v4(pool)):
        if inner is not None:
            # If layers share a row, waiting for the first of them is enough to read it.
            found.setdefault(id(inner), (inner, {}))[1].setdefault(number, layer)
    yield from found.values()


def _hybrid_linear(pool: Any) -> Iterator[tuple[Any, int, int]]:
    """Handle ``HybridLinearKVPool``: its full-attention layers form one pool."""
    mapping = getattr(pool, "full_attention_layer_id_mapping", None) or {}
    for layer, number in mapping.items():
        yield getattr(pool, "full_kv_pool", None), number, layer - pool.start_layer


def _sliding(pool: Any) -> Iterator[tuple[Any, int, int]]:
    """Handle ``SWAKVPool``: one pool for full and one for sliding-window layers."""
    mapping = getattr(pool, "layers_mapping", None) or {}
    for layer, (number, is_sliding) in mapping.items():
        inner = pool.swa_kv_pool if is_sliding else pool.full_kv_pool
        yield inner, number, layer - pool.start_layer


def _deepseek_v4(pool: Any) -> Iterator[tuple[Any, int, int]]:
    """Handle ``DeepSeekV4TokenToKVPool``: a window per layer, compressed pools by ratio, an index."""
    if getattr(pool, "layer_mapping", None) is None:
        return
    first = getattr(pool, "_stage_start", 0)
    indexes = getattr(pool, "index_pools", None) or {4: getattr(pool, "c4_indexer_kv_pool", None)}
    for layer, item in enumerate(pool.layer_mapping):
        if item is None:
            continue
        ratio, number, compressed = item
        yield pool.swa_kv_pool, layer - first, layer - pool.start_layer
        if number is not None:
            yield compressed, number, layer - pool.start_layer
            yield indexes.get(ratio), number, layer - pool.start_layer
