"""State under which keys a process stores pages, for a join with others that share the store.

A content is identified by a digest of its tokens that is computed here, independently of the
engine's own keys. Contents of other models, namespaces or ranks rightly have other keys and are
never compared.
"""

from collections.abc import Callable

from hicache_dbg.pools.radix_input import TOKEN_BYTES
from hicache_dbg.pools.storage.engine import StorageEngine
from hicache_dbg.pools.storage.keys import PageKey
from hicache_dbg.tracer.attach.patch import Patches
from hicache_dbg.tracer.checks.identity import prefix_digests
from hicache_dbg.tracer.events import Topic
from hicache_dbg.tracer.session import Session

__all__ = ["KeyStatements"]

#: Most contents stated per process: all keys are built the same way, so a few suffice.
MOST = 32


class KeyStatements:
    """States the first keys a storage engine builds; ``attach`` and ``detach`` are a pair."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = Patches()
        self._said: set[tuple[str, str]] = set()

    def attach(self) -> None:
        """Wrap what is not wrapped yet."""
        self._patches.replace(StorageEngine, "keys", self._around_keys)

    def detach(self) -> None:
        """Restore the engine's own method."""
        self._patches.undo()

    def _around_keys(self, original: Callable[..., list[PageKey]]) -> Callable[..., list[PageKey]]:
        def keys(engine: StorageEngine, tokens: bytes) -> list[PageKey]:
            made = original(engine, tokens)
            if made and len(self._said) < MOST and self._session.probe.enabled:
                with self._session.errors.at("storage/keys"):
                    self._say(engine, tokens, made[0])
            return made

        return keys

    def _say(self, engine: StorageEngine, tokens: bytes, first: PageKey) -> None:
        whose = engine.identity
        shard = f"{whose.model}/{whose.namespace}/{whose.rank}"
        page = tokens[: engine.image.page_tokens * TOKEN_BYTES]
        request = f"{int(prefix_digests([page])[0]):016x}"
        if (shard, request) not in self._said:
            self._said.add((shard, request))
            self._session.state(Topic.KEY, (first.name,), alone=True, request=request, shard=shard)
