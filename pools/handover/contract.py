"""The contract: the fields both ends must agree on before any byte moves, read from the tensors."""

from collections.abc import Mapping

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.errors import ContractRefused, Difference

__all__ = ["ABSENT", "Fields", "contract_of", "differences", "require_same"]

Fields = Mapping[str, str]
#: Version of the messages and of the descriptor order.
FORMAT = "1"
ABSENT = "absent"


def contract_of(group: PoolGroup, model: str) -> dict[str, str]:
    """Return the fields of one end; ``model`` is a fingerprint of weights and settings.

    The number of pages is not among them: it may differ between the ends.
    """
    fields = {
        "format": FORMAT,
        "model": model,
        "pools": "+".join(mirror.name for mirror in group.mirrors),
    }
    for mirror in group.mirrors:
        fields |= _pool(mirror.name, mirror.device)
    return fields


def _pool(name: str, pool: DevicePool) -> dict[str, str]:
    geometry = pool.geometry
    fields = {
        f"{name}.index_unit": geometry.index_unit.value,
        f"{name}.tokens_per_page": f"{geometry.tokens_per_page}",
        f"{name}.slots_per_page": f"{geometry.slots_per_page}",
        f"{name}.layers": ",".join(map(str, geometry.layer_ids)),
    }
    for component, buffer in pool.buffers.items():
        tensor = buffer.tensors[0]
        part = buffer.component
        fields |= {
            f"{name}.{component}.dtype": str(tensor.dtype).removeprefix("torch."),
            f"{name}.{component}.slot_bytes": f"{part.slot_bytes}",
            f"{name}.{component}.page_bytes": f"{part.page_bytes(geometry.slots_per_page)}",
            f"{name}.{component}.layout": "/".join(buffer.dims),
            f"{name}.{component}.runs": ",".join(f"{r.name}:{r.slot_bytes}" for r in part.runs),
        }
    return fields


def differences(prefill: Fields, decode: Fields) -> list[Difference]:
    """Return every field in which the ends differ, in prefill's order."""
    return [
        (name, prefill.get(name, ABSENT), decode.get(name, ABSENT))
        for name in dict.fromkeys((*prefill, *decode))
        if prefill.get(name) != decode.get(name)
    ]


def require_same(prefill: Fields, decode: Fields) -> None:
    """Refuse a pair of ends that disagree.

    Raises:
        ContractRefused: With each differing field and both values.
    """
    found = differences(prefill, decode)
    if found:
        raise ContractRefused(found)
