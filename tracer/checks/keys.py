"""Check that processes sharing a store use one key for one content.

A random hash seed, a per-process salt, or token pairs in one process and single tokens in another:
nobody reads a wrong byte, but nobody ever hits what another process wrote.
"""

from collections.abc import Iterable

from hicache_dbg.tracer.checks.processes import Process
from hicache_dbg.tracer.events import FaultClass, Finding, Topic

__all__ = ["CHECK", "check_keys"]

CHECK = "keys"
#: (shard, content): each shard of a content has its own key, so only equal shards are compared.
Content = tuple[str, str]


def check_keys(parties: Iterable[Process]) -> list[Finding]:
    """Return at most one finding: the first content with two keys, and how many there are."""
    keys: dict[Content, dict[str, str]] = {}
    last = 0
    for party in parties:
        last = max(last, party.last_ns)
        for said in party.on(Topic.KEY):
            keys.setdefault((said.shard, said.request), {}).setdefault(said.values[0], str(party))
    wrong = {content: names for content, names in keys.items() if len(names) > 1}
    if not wrong:
        return []
    (_, tokens), names = next(iter(wrong.items()))
    (first, ours), (second, theirs) = list(names.items())[:2]
    return [
        Finding(
            time_ns=last,
            cls=FaultClass.KEY_IDENTITY,
            pool="",
            message=(
                f"same content, keys {first} and {second}: {ours} and {theirs} name tokens {tokens} "
                f"differently, and {len(wrong)} contents in all; what one writes the other never finds"
            ),
            expected=first,
            got=second,
            advice="make keys of the tokens alone, in one way in every process: fix the seed "
            "(PYTHONHASHSEED), hash bytes and not objects",
            check=CHECK,
        )
    ]
