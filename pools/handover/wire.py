"""NIXL: one-sided writes from this process's pools into another's, and notifications behind them."""

import logging
import os
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from hicache_dbg.pools.handover.errors import HandoverError, NixlMissing
from hicache_dbg.pools.handover.planes import Descriptors, merged

__all__ = ["NixlWire", "Transfer", "TransferState", "Wire", "packages_for"]

TransferState = Literal["PROC", "DONE", "ERR"]
Transfer = Any
"""A transfer's handle; only its wire looks into it."""

_PACKAGES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
_FAILURES = "ucx_error_handling_mode"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_names = count(1)


class Wire(Protocol):
    """What carries bytes. All methods are called from one thread, and none waits."""

    @property
    def agent(self) -> bytes:
        """What the other end must know to be reached."""
        ...

    def meet(self, agent: bytes) -> None:
        """Take note of the other end's agent."""
        ...

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """A transfer that will write all of ``local`` to ``remote``; ``note`` comes after the last byte."""
        ...

    def begin(self, transfer: Transfer) -> None:
        """Begin to write; on a CPU much of it is done when this returns."""
        ...

    def state(self, transfer: Transfer) -> TransferState:
        """How a transfer stands."""
        ...

    def release(self, transfer: Transfer) -> None:
        """Let a transfer go; one under way is cancelled."""
        ...

    def notes(self) -> list[bytes]:
        """Notifications that came since the last call."""
        ...

    def close(self) -> None:
        """End all traffic: after it nothing of the other end's is written here any more."""
        ...


class NixlWire:
    """A NIXL agent of its own over the UCX backend, for one peer.

    Args:
        regions: (address, bytes, device) of the memory that may be read and written.
        kind: where it lies, ``DRAM`` or ``VRAM``.
        near: the peer is on the same host, and whoever owns this learns of its death by itself.
            UCX then moves host memory through the kernel, which tells of no dead peer, and needs
            no thread, which would take a core.

    Raises:
        NixlMissing: the package is not here, or UCX does not start.
    """

    def __init__(
        self,
        regions: Sequence[tuple[int, int, int]],
        kind: str = "DRAM",
        *,
        near: bool = False,
    ) -> None:
        self._kind = kind
        self._peer = ""
        api = _api()
        try:
            alone = near and kind == "DRAM"
            config = api.nixl_agent_config(enable_prog_thread=not alone, backends=[])
            self._agent: Any = api.nixl_agent(f"hicache-{os.getpid()}-{next(_names)}", config)
            self._agent.create_backend("UCX", {_FAILURES: "none"} if alone else {})
            rows = [(*region, "") for region in regions]
            self._memory = self._agent.register_memory(rows, kind)
        except Exception as error:
            raise NixlMissing(f"NIXL does not start: {type(error).__name__}: {error}") from error

    @property
    def agent(self) -> bytes:
        """The agent's metadata, with the memory that it has registered."""
        found: bytes = self._agent.get_agent_metadata()
        return found

    def meet(self, agent: bytes) -> None:
        """Load the other agent's metadata."""
        name = self._agent.add_remote_agent(agent)
        self._peer = name.decode() if isinstance(name, bytes) else name

    def prepare(self, local: Descriptors, remote: Descriptors, note: bytes) -> Transfer:
        """One transfer of as few rows as can be.

        Raises:
            HandoverError: NIXL refuses it.
        """
        agent = self._agent
        ours, theirs = merged(local, remote)
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
        """Hand it to UCX, which lets other threads run meanwhile.

        Raises:
            HandoverError: NIXL refuses it, or the peer is gone.
        """
        try:
            self._agent.transfer(transfer)
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error

    def state(self, transfer: Transfer) -> TransferState:
        """``ERR`` also where the peer is gone."""
        try:
            found: TransferState = self._agent.check_xfer_state(transfer)
        except Exception:  # noqa: BLE001 - each binding has errors of its own, and all mean this
            return "ERR"
        return found

    def release(self, transfer: Transfer) -> None:
        """Raises :class:`HandoverError` where it is under way and cannot be cancelled."""
        try:
            self._agent.release_xfer_handle(transfer)
        except Exception as error:
            raise HandoverError(f"NIXL: {type(error).__name__}: {error}") from error

    def notes(self) -> list[bytes]:
        """Those of the peer."""
        return [note for notes in self._agent.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        """Disconnect, take the memory back and end the agent with its threads."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        known = [(agent.remove_remote_agent, self._peer)] if self._peer else []
        for step, what in (*known, (agent.deregister_memory, self._memory)):
            try:
                step(what)
            except Exception as error:  # noqa: BLE001 - the peer may have gone first
                _log.debug("nixl: %s", error)


_log = logging.getLogger("hicache_dbg")


def _api() -> Any:
    """NIXL's Python API, imported when it is first wanted."""
    if not (_RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir())):
        # Without such devices UCX's module for them is of no use, and where the system has an
        # ibverbs of its own beside the wheel's, the process crashes at exit.
        os.environ.setdefault("UCX_MODULES", "^ib")
    for name in packages_for(torch.version.cuda):
        try:
            api = import_module(name)
        except ImportError:
            continue
        if "NIXL_LOG_LEVEL" not in os.environ:  # it says hello on stdout, where reports go
            logging.getLogger("nixl").setLevel(logging.WARNING)
        return api
    raise NixlMissing(
        "NIXL is not installed; pip install 'hicache-dbg[nixl]', with CUDA 13 'hicache-dbg[nixl-cu13]'"
    )


def packages_for(cuda: str | None) -> list[str]:
    """Where NIXL's Python API may be, the build for torch's version of CUDA first."""
    major = (cuda or "").partition(".")[0]
    return sorted(_PACKAGES, key=lambda name: f"cu{major}" not in name)
