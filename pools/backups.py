"""Backups, device to host: which pages are copied, when, and what happens to the result."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hicache_dbg.pools.failures import Failures
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.radix import Node
from hicache_dbg.pools.state import CacheState
from hicache_dbg.pools.transfer import CopyOp
from hicache_dbg.pools.worker import Worker

__all__ = ["Backups", "WritePolicy"]

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]

#: Hits from which ``write_through_selective`` backs a page up.
SELECTIVE_HITS = 2


class Backups:
    """Runs backups on a worker thread; registers a host copy once all pools' bytes have arrived.

    Write-through backs up everything inserted, selective write-through what is used repeatedly, and
    write-back what the device is about to evict.
    """

    def __init__(self, state: CacheState, failures: Failures, policy: WritePolicy) -> None:
        self._state = state
        self._failures = failures
        self._policy = policy
        self._worker = Worker("hicache-backup")
        self._under_way = np.zeros(state.device.pages, dtype=np.bool_)  # by device page
        if policy == "write_back":
            state.before_eviction = self._write_back

    def consider(self, node: Node) -> None:
        """Queue the backups that the policy asks for on the path to ``node`` (lock held)."""
        if self._policy != "write_back":
            self.queue(node, SELECTIVE_HITS if self._policy == "write_through_selective" else 0)

    def queue(self, node: Node, hits: int = 0) -> None:
        """Queue nodes on the path to ``node`` with ``hits`` uses and no host copy (lock held)."""
        nodes = [
            item
            for item in self._state.tree.unbacked(node)
            if item.hits >= hits and not self._under_way[item.device[0]]
        ]
        if nodes:
            self._start(nodes)

    def close(self) -> None:
        """Finish the queued backups, start no more, and stop the worker."""
        with self._state.changed:
            self._state.before_eviction = None
        self._worker.close()

    def _start(self, nodes: Sequence[Node]) -> None:
        """Queue one operation for ``nodes``, or for the leading ones that the host has room for."""
        state = self._state
        for node in nodes:
            state.tree.lock(node)  # before making room, or these nodes could be evicted for it
        parts: list[tuple[Node, Ids]] = []
        for node in nodes:
            host = state.try_host(node.pages)
            if host is None:
                break  # a host copy is useless without the pages before it
            parts.append((node, host))
        for node in nodes[len(parts) :]:
            state.stats.unbacked_pages += node.pages
            state.tree.unlock(node)
        if not parts:
            return
        host = np.concatenate([ids for _, ids in parts])
        device = np.concatenate([node.device for node, _ in parts])
        self._under_way[device] = True
        op = state.begin("backup", host, device)
        self._worker.submit(lambda: self._carry_out(op, parts, host, device))

    def _carry_out(
        self, op: CopyOp, parts: Sequence[tuple[Node, Ids]], host: Ids, device: Ids
    ) -> None:
        good = self._copy(op)
        state = self._state
        with state.changed:
            self._under_way[device] = False
            state.end(host, device)
            for node, ids in parts:
                state.host.free(state.tree.set_host(node, ids) if good else ids)
                if good and state.on_host_copy:
                    state.on_host_copy(node, ids.size)
                state.tree.unlock(node)

    def _write_back(self, node: Node) -> Ids | None:
        """Back ``node`` up before its eviction (lock held); return its host pages or None."""
        state = self._state
        host = state.try_host(node.pages)
        if host is None:
            state.stats.unbacked_pages += node.pages
            return None
        op = state.begin("backup", host, node.device)
        good = self._copy(op)
        state.end(host, node.device)
        if good:
            return host
        state.host.free(host)
        return None

    def _copy(self, op: CopyOp) -> bool:
        """Execute ``op`` and return whether it succeeded; record the failure otherwise."""
        state = self._state
        try:
            with state.beside_captures():
                state.engine.backup(op)
        except Exception as error:  # noqa: BLE001 (whatever it is, flush() must report it)
            self._failures.add(op, error)
        with state.changed:
            if op.status == "done":
                state.stats.backups += 1
                state.stats.backed_up_pages += op.host_generations.size
            else:
                state.stats.failed_backups += 1
        return op.status == "done"
