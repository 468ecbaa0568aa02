"""Loads, host to device: matched pages are brought back layer by layer, behind gates."""

from collections.abc import Sequence

import numpy as np

from hicache_dbg.pools.failures import Failures
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.ticket import Load, LoadTicket
from hicache_dbg.pools.transfer import CopyOp, TransferError
from hicache_dbg.pools.worker import Worker

__all__ = ["Loads"]


class Loads:
    """Runs loads on a worker thread; registers a device copy once all pools' bytes have arrived.

    A page that is already being loaded is waited for, not loaded again. Loaded pages that the tree
    does not accept (it has other copies by then, or the load failed) are *leftover*: they are freed
    when the last reader has gone.
    """

    def __init__(self, state: CacheState, failures: Failures) -> None:
        self._state = state
        self._failures = failures
        self._worker = Worker("hicache-load")
        self._under_way: dict[int, tuple[Load, int]] = {}  # host page -> its load, device page
        self._loading = np.zeros(state.device.pages, dtype=np.bool_)  # by device page
        self._leftover = np.zeros(state.device.pages, dtype=np.bool_)  # by device page

    def ticket(self, node: Node, owner: int) -> LoadTicket:
        """Start loading the host-only part of the path to ``node`` (lock held); return the ticket.

        Raises:
            OutOfPages: the device has no room and waiting will not make any.
        """
        state = self._state
        while True:
            resident, tail = _places(node)
            shared = self._shared(tail)
            own = tail[len(shared) :]
            device = state.try_device(own.size, owner)
            if device is not None:
                break
            state.wait_for_room(own.size)  # another request may load or insert them meanwhile
        loads = list(dict.fromkeys(load for load, _ in shared))
        if own.size:
            loads.append(self._start(node, own, device, tuple(loads)))
        for load in loads:
            load.users += 1
        borrowed = np.array([page for _, page in shared], dtype=np.int64)
        return LoadTicket(np.concatenate([resident, borrowed, device]), tuple(loads))

    def release(self, ticket: LoadTicket) -> None:
        """Drop one reader of the ticket's loads (lock held)."""
        for load in ticket.loads:
            load.users -= 1
            self._free_leftover(load)

    def loading(self, pages: Ids) -> Ids:
        """Return those of ``pages`` whose bytes have not all arrived yet."""
        return pages[self._loading[pages]]

    def not_leftover(self, pages: Ids) -> Ids:
        """Return those of ``pages`` that no load is about to free."""
        return pages[~self._leftover[pages]]

    def close(self) -> None:
        """Finish the queued loads and stop the worker."""
        self._worker.close()

    def _shared(self, tail: Ids) -> list[tuple[Load, int]]:
        """Return the loads in flight that cover the leading pages of ``tail``, page by page."""
        found = []
        for page in tail.tolist():
            if page not in self._under_way:
                break
            found.append(self._under_way[page])
        return found

    def _start(self, node: Node, host: Ids, device: Ids, before: Sequence[Load]) -> Load:
        state = self._state
        state.tree.lock(node)
        op = state.begin("load", host, device)
        load = Load(op.op_id, host, device, state.group.layer_ids)
        for host_page, device_page in zip(host.tolist(), device.tolist(), strict=True):
            self._under_way[host_page] = (load, device_page)
        self._loading[device] = True
        self._worker.submit(lambda: self._carry_out(op, load, node, before))
        return load

    def _carry_out(self, op: CopyOp, load: Load, node: Node, before: Sequence[Load]) -> None:
        error: Exception | None = None
        try:
            _require(before)
            with self._state.beside_captures():
                self._state.engine.load(op, load.open)
        except Exception as caught:  # noqa: BLE001 (whatever it is, readers must get it)
            error = caught
            self._failures.add(op, caught)
        with self._state.changed:
            self._commit(load, node, good=error is None)
        load.finish(error)

    def _commit(self, load: Load, node: Node, *, good: bool) -> None:
        state = self._state
        state.end(load.host, load.device)
        self._loading[load.device] = False
        for page in load.host.tolist():
            del self._under_way[page]
        if good:
            load.leftover = state.tree.set_device(node, load.device)
            state.stats.loads += 1
            state.stats.loaded_pages += load.host.size
        else:
            load.leftover = load.device
            state.stats.failed_loads += 1
        self._leftover[load.leftover] = True
        self._free_leftover(load)
        state.tree.unlock(node)

    def _free_leftover(self, load: Load) -> None:
        if load.users == 0 and load.leftover.size:
            self._leftover[load.leftover] = False
            self._state.device.free(load.leftover)
            load.leftover = load.leftover[:0]


def _require(before: Sequence[Load]) -> None:
    """Raise if an earlier load that this one builds on has failed.

    Loads run in order, so every load in ``before`` has finished by now.
    """
    for load in before:
        if load.error is not None:
            raise TransferError(f"the pages before it failed with load {load.op_id}: {load.error}")


def _places(node: Node) -> tuple[Ids, Ids]:
    """Return the device pages of the path to ``node``, and the host pages of its host-only rest."""
    path = list(node.path())[::-1]
    empty = np.empty(0, dtype=np.int64)
    resident = np.concatenate([empty, *(item.device for item in path)])
    tail = np.concatenate([empty, *(item.host for item in path if not item.on_device)])
    return resident, tail
