"""NIXL: one-sided writes into another process's pools, each followed by a notification."""

import logging
import os
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from hicache_dbg.pools.forks import leak, left_to_parent
from hicache_dbg.pools.handover.errors import HandoverError, NixlMissing
from hicache_dbg.pools.handover.planes import Descriptors, Starts, merged

__all__ = ["NixlWire", "Transfer", "TransferState", "Wire", "packages_for"]

TransferState = Literal["PROC", "DONE", "ERR"]
Transfer = Any
"""The handle of a transfer, opaque to all but its wire."""

_PACKAGES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
_FAILURES = "ucx_error_handling_mode"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_names = count(1)


class Wire(Protocol):
    """Carries bytes. All methods are called from one thread; only ``begin`` may take long."""

    @property
    def agent(self) -> bytes:
        """The metadata by which the peer reaches this end."""
        ...

    def meet(self, agent: bytes, starts: Starts) -> None:
        """Load the peer's metadata; ``starts`` are where its tensors begin."""
        ...

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """Prepare a write of ``local`` to ``remote``; ``note`` is delivered after the last byte."""
        ...

    def begin(self, transfer: Transfer) -> None:
        """Start the write. In CPU memory it is mostly done when this returns."""
        ...

    def state(self, transfer: Transfer) -> TransferState:
        """Return the state of a transfer."""
        ...

    def release(self, transfer: Transfer) -> None:
        """Release a transfer's handle, cancelling the transfer if it is under way."""
        ...

    def notes(self) -> list[bytes]:
        """Return the notifications received since the last call."""
        ...

    def close(self) -> None:
        """End all traffic: the peer can no longer write here."""
        ...


class NixlWire:
    """A NIXL agent over the UCX backend, for one peer.

    Args:
        regions: (address, bytes, device) of the memory that may be read and written.
        kind: ``DRAM`` or ``VRAM``.
        near: The peer is on the same host, and the owner detects its death by other means. NIXL then
            runs no progress thread: it would occupy a core, and its waits for CUDA events end the
            process while another thread captures a graph. Host memory is copied through the kernel,
            without UCX's peer failure detection.
        thread: Whether NIXL runs its progress thread; by default it does unless the peer is near.

    Raises:
        NixlMissing: The package is not installed, or UCX does not start.
    """

    def __init__(
        self,
        regions: Sequence[tuple[int, int, int]],
        kind: str = "DRAM",
        *,
        near: bool = False,
        thread: bool | None = None,
    ) -> None:
        self._kind = kind
        self._peer = ""
        own = np.array([address for address, _, _ in regions], np.uint64)
        self._starts: tuple[Starts, Starts] = own, np.empty(0, np.uint64)
        api = _api()
        try:
            threaded = not near if thread is None else thread
            config = api.nixl_agent_config(enable_prog_thread=threaded, backends=[])
            self._agent: Any = api.nixl_agent(f"hicache-{os.getpid()}-{next(_names)}", config)
            self._agent.create_backend(
                "UCX", {_FAILURES: "none"} if near and kind == "DRAM" else {}
            )
            rows = [(*region, "") for region in regions]
            self._memory = self._agent.register_memory(rows, kind)
        except Exception as error:
            raise NixlMissing(f"NIXL does not start: {type(error).__name__}: {error}") from error
        left_to_parent(self)

    def leave_to_parent(self) -> None:
        """Leak a forked child's copy of the agent: it shares the parent's sockets and epoll instance."""
        agent, self._agent = self._agent, None
        leak(agent)

    @property
    def agent(self) -> bytes:
        """The agent's metadata, including its registered memory."""
        found: bytes = self._agent.get_agent_metadata()
        return found

    def meet(self, agent: bytes, starts: Starts) -> None:
        """Load the peer agent's metadata; ``starts`` are where its tensors begin.

        Raises:
            HandoverError: NIXL refuses it.
        """
        try:
            name = self._agent.add_remote_agent(agent)
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error
        self._peer = name.decode() if isinstance(name, bytes) else name
        self._starts = self._starts[0], starts

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """Prepare one transfer, with adjacent rows merged.

        Raises:
            HandoverError: NIXL refuses it.
        """
        agent = self._agent
        ours, theirs = merged(local, remote, starts=self._starts)
        try:
            return agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs(ours, self._kind),
                agent.get_xfer_descs(theirs, self._kind),
                self._peer,
                note,
            )
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error

    def begin(self, transfer: Transfer) -> None:
        """Post the transfer to UCX, which releases the GIL.

        Raises:
            HandoverError: NIXL refuses it, or the peer is gone.
        """
        try:
            self._agent.transfer(transfer)
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error

    def state(self, transfer: Transfer) -> TransferState:
        """Return the state of a transfer; ``ERR`` also if the peer is gone."""
        try:
            found: TransferState = self._agent.check_xfer_state(transfer)
        except Exception:  # noqa: BLE001 - each binding has errors of its own
            return "ERR"
        return found

    def release(self, transfer: Transfer) -> None:
        """Release the handle. Raises :class:`HandoverError` if the transfer cannot be cancelled."""
        try:
            self._agent.release_xfer_handle(transfer)
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error

    def notes(self) -> list[bytes]:
        """Return the notifications from the peer."""
        return [note for notes in self._agent.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        """Disconnect, deregister the memory and end the agent with its threads."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        known = [(agent.remove_remote_agent, self._peer)] if self._peer else []
        for step, what in (*known, (agent.deregister_memory, self._memory)):
            try:
                step(what)
            except Exception as error:  # noqa: BLE001 - the peer may be gone already
                _log.debug("nixl: %s", error)


_log = logging.getLogger("hicache_dbg")


def _api() -> Any:
    """Import NIXL's Python API on first use."""
    if not (_RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir())):
        # UCX's InfiniBand module is useless without devices, and crashes the process at exit if the
        # system has an ibverbs library beside the wheel's.
        os.environ.setdefault("UCX_MODULES", "^ib")
    # UCX uses SIGHUP as its debug signal; it must still end a process whose terminal closes.
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
    for name in packages_for(torch.version.cuda):
        try:
            api = import_module(name)
        except ImportError:
            continue
        if "NIXL_LOG_LEVEL" not in os.environ:  # it greets on stdout, where reports go
            logging.getLogger("nixl").setLevel(logging.WARNING)
        return api
    raise NixlMissing(
        "NIXL is not installed; pip install 'hicache-dbg[nixl]', with CUDA 13 'hicache-dbg[nixl-cu13]'"
    )


def packages_for(cuda: str | None) -> list[str]:
    """Return the modules to try for NIXL's API, the build for torch's CUDA version first."""
    major = (cuda or "").partition(".")[0]
    return sorted(_PACKAGES, key=lambda name: f"cu{major}" not in name)
