"""Digest layers that arrive by broadcast, and state the digests once the device is done.

All ranks make the same broadcasts in the same order, so a load's number and a page's position in it
identify the same tile everywhere. Differences are found when the recordings of the ranks are joined.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hicache_dbg.tracer.attach.notes import Notes
from hicache_dbg.tracer.attach.sglang.broadcast_loads import POOL, Load, copied, state
from hicache_dbg.tracer.attach.sglang.late_desk import LateDesk
from hicache_dbg.tracer.attach.sglang.late_indices import LateIndices
from hicache_dbg.tracer.attach.sglang.say import Say
from hicache_dbg.tracer.attach.sglang.tensors import End, of_pages, of_rows
from hicache_dbg.tracer.checks.violation import Violation
from hicache_dbg.tracer.digest.torch_digester import TorchDigester
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.settings import Checksum
from hicache_dbg.tracer.view import View

__all__ = ["MOST_BYTES", "Arrival", "BroadcastDigests"]

#: Most bytes of one tensor to digest (its first pages): digesting temporarily needs several times as
#: much memory.
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """One tensor of one layer that has arrived.

    Args:
        component: its name, the same on all ranks.
        layer: the layer's number in the load.
        tensor: ``[rows, ...]``.
        rows: the rows that the load brought, int64; pages are runs of ``page`` of them.
        page: number of rows per page.
    """

    component: str
    layer: int
    tensor: torch.Tensor
    rows: torch.Tensor
    page: int = 1


class BroadcastDigests:
    """Digests arrivals on the caller's stream and states them on the bus's thread.

    Args:
        say: gives access to the session and receives statements.
        indices: keeps digests that are still being computed.
    """

    def __init__(self, say: Say, indices: LateIndices) -> None:
        self.say = say
        #: Whether every load since the start was counted. If not, a load's number is unknown, and it
        #: is not compared with those of other ranks.
        self.numbered = True
        self._indices = indices
        self._notes: Notes | None = None
        self._loads: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def count(self, source: Any) -> int:
        """Count one more load of ``source``, and return how many there were."""
        self._loads[source] = number = self._loads.get(source, 0) + 1
        return number

    def arrived(self, load: Load, arrival: Arrival) -> None:
        """Digest the pages of one tensor that has arrived."""
        session, rows = self.say.session(), arrival.rows
        if session is None or not session.settings.traces(POOL) or not rows.numel():
            return
        page = 1 if rows.numel() % arrival.page else arrival.page
        view = _view(arrival.component, arrival.tensor, page)
        load.add(arrival.component, arrival.layer, view, rows.numel() // page)
        load.stated = min(load.pages, max(1, MOST_BYTES // view.page_span))
        off = session.settings.checksum is Checksum.OFF
        if off or not self.numbered or _capturing(arrival.tensor):
            return
        device = arrival.tensor.device
        pages = rows[::page][: load.stated].contiguous().to(device)
        digests = torch.empty(1, len(pages), dtype=torch.int64, device=device)
        TorchDigester(device).digest(view, [0], pages, out=digests, unit=page)
        kept = self._indices.keep(digests)
        if kept is not None:
            load.digests[arrival.component, arrival.layer] = kept

    def finish(self, load: Load, *, component: str = "", copied_by: str | None = None) -> None:
        """State what arrived, in order, of one component or of all.

        Once the last digest is complete, so are the others. With ``copied_by``, the class that
        received it, the load also becomes an event of its own.
        """
        session = self.say.session()
        if session is None or not load.arrived:
            return
        if self._notes is None:
            self._notes = Notes(LateDesk(session, self._indices, self.say), lambda: None)
        parts = [component] if component else list(load.arrived)
        layers = {part: load.arrived[part] for part in parts}
        kept = {key: load.digests.pop(key) for key in list(load.digests) if key[0] in parts}

        def turn() -> list[Violation]:
            for part in parts:
                state(session, load, part, layers[part], kept)
            if copied_by is not None:
                session.bus.publish(copied(session, load, copied_by, len(kept)))
            return []

        last = list(kept.values())[-1] if kept else None
        self._notes.take(turn, POOL, Op.LOAD.value, about=last)


def _view(component: str, tensor: torch.Tensor, page: int) -> View:
    end = End(POOL, component, "device")
    return of_rows(end, [tensor], page) if page > 1 else of_pages(end, [tensor], 1)


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
