"""Under which name a page is stored: a hash chain over all tokens up to its end, and what they mean.

The chain's seed holds everything that changes what the same tokens compute to: the model's
fingerprint, the namespace (salt, adapter, tenant) and the rank whose share of the heads it is.
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
    """Whose pages these are; two runs share pages only where all three agree."""

    model: str
    namespace: str = ""
    rank: int = 0

    def seed(self) -> bytes:
        """The chain's beginning: the fields apart, so that no two can be taken for each other."""
        fields = {"model": self.model, "namespace": self.namespace, "rank": self.rank}
        return hashlib.blake2b(msgspec.json.encode(fields), digest_size=KEY_BYTES).digest()


class PageKey(NamedTuple):
    """A page's name, and a second, independent digest of all tokens up to the page's end."""

    name: str
    tokens: int


def page_keys(identity: Identity, tokens: bytes, page_bytes: int) -> list[PageKey]:
    """The keys of the whole pages of ``tokens``, which are int32, little-endian, from the first on."""
    return list(_chain(identity, tokens, page_bytes))


def _chain(identity: Identity, tokens: bytes, page_bytes: int) -> Iterator[PageKey]:
    link, digest = identity.seed(), xxhash.xxh3_64()
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        page = tokens[start : start + page_bytes]
        link = hashlib.blake2b(page, key=link, digest_size=KEY_BYTES).digest()
        digest.update(page)
        yield PageKey(link.hex(), digest.intdigest())
