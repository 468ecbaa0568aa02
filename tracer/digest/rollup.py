"""Roll-ups: one value for a page over all its layers, which the device keeps of a witnessed page.

A roll-up is the page's key plus, for each layer, XXH3's avalanche of (digest + (layer + 1) * PRIME64_1),
all modulo 2**64. Layers may come in any order, and none can stand in for another. The key mixes the
page's generation with how often a write to it had begun, so a roll-up from an earlier life of the page,
or from before it was rewritten, matches nothing. 0 means "nothing is known" and is never a roll-up.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hicache_dbg.tracer.digest import xxh3

__all__ = ["keys_of", "rolled"]

_PRIME = np.uint64(xxh3.PRIME64_1)
_GENERATION, _WRITE = np.uint64(xxh3.PRIME64_2), np.uint64(xxh3.PRIME64_3)
_AVALANCHE = np.uint64(xxh3.AVALANCHE_PRIME)


def keys_of(
    generations: npt.NDArray[np.int64], writes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return each page's key, uint64 [pages]; lives within 2**31 of each other have distinct keys."""
    mixed = generations.view(np.uint64) * _GENERATION
    mixed += writes.view(np.uint64) * _WRITE
    return mixed


def rolled(
    digests: npt.NDArray[np.uint64], layers: Sequence[int], keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the roll-ups of ``digests`` [layers, pages] under ``keys`` [pages]: uint64 [pages]."""
    numbers = (np.asarray(layers, np.uint64) + np.uint64(1))[:, None] * _PRIME
    total = keys + _avalanche(digests + numbers).sum(axis=0, dtype=np.uint64)
    return np.where(total == 0, np.uint64(1), total)


def _avalanche(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(37))) * _AVALANCHE
    return value ^ (value >> np.uint64(32))
