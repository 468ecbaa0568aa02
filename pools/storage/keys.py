"""Storage keys: a hash chain over all tokens up to the end of a page.

The seed of the chain covers everything else that determines the cached values: the model
fingerprint, the namespace (salt, adapter, tenant) and the rank, which holds its share of the heads.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import xxhash

__all__ = ["Identity", "PageKey", "page_keys"]

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of pages; two runs share pages only if all three fields agree."""

    model: str
    namespace: str = ""
    rank: int = 0

    def seed(self) -> bytes:
        """Return the seed of the chain, with the fields tagged so that none can pass for another."""
        fields = {"model": self.model, "namespace": self.namespace, "rank": self.rank}
        return hashlib.blake2b(msgspec.json.encode(fields), digest_size=KEY_BYTES).digest()


class PageKey(NamedTuple):
    """The name of a page, and an independent digest of all tokens up to its end."""

    name: str
    tokens: int


def page_keys(identity: Identity, tokens: bytes, page_bytes: int) -> list[PageKey]:
    """Return the keys of all whole pages of ``tokens`` (int32, little-endian)."""
    return list(_chain(identity, tokens, page_bytes))


def _chain(identity: Identity, tokens: bytes, page_bytes: int) -> Iterator[PageKey]:
    link, digest = identity.seed(), xxhash.xxh3_64()
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        page = tokens[start : start + page_bytes]
        link = hashlib.blake2b(page, key=link, digest_size=KEY_BYTES).digest()
        digest.update(page)
        yield PageKey(link.hex(), digest.intdigest())
