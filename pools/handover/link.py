"""The connection to one peer: control channel, wire and contract. Shared by both ends."""

import threading
import time
from collections.abc import Callable
from itertools import zip_longest
from multiprocessing.connection import Connection

import torch

from hicache_dbg.pools.captures import guard_for
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.handover.channel import SILENCE_S, Channel, same_host
from hicache_dbg.pools.handover.contract import ABSENT, Fields, contract_of, require_same
from hicache_dbg.pools.handover.errors import ContractRefused, HandoverError, PeerLost
from hicache_dbg.pools.handover.messages import Hello
from hicache_dbg.pools.handover.planes import Plane, planes_of, regions_of, starts_of
from hicache_dbg.pools.handover.wire import NixlWire, Wire

__all__ = ["IDLE_S", "Link", "Pump", "nixl_wire"]

#: How long an idle pump listens at a time, in seconds.
IDLE_S = 0.005


class Link:
    """One end of a pair of processes that agree on the layout of their bytes.

    Args:
        role: ``prefill`` or ``decode``.
        group: This end's pools.
        connection: A :func:`multiprocessing.Pipe` or socket connection to the peer.
        model: A fingerprint of weights and settings, which both ends must share.
        silence_s: Seconds of silence after which the peer is considered lost.
        wire: Carries the bytes; by default NIXL over the group's device memory.
    """

    def __init__(
        self,
        role: str,
        group: PoolGroup,
        connection: Connection,
        *,
        model: str = "",
        silence_s: float = SILENCE_S,
        wire: Wire | None = None,
    ) -> None:
        self.role = role
        self.group = group
        self.device = device = group.mirrors[0].device.device
        self.wire: Wire = wire or nixl_wire(group, connection)
        self.channel = Channel(connection, silence_s)
        self.ours = Hello(
            role=role,
            contract=contract_of(group, model),
            pages=group.device_pages,
            device=device.index or 0,
            planes=planes_of(group),
            agent=self.wire.agent,
        )
        self.theirs: Hello | None = None

    def agree(self) -> Hello:
        """Exchange and compare contracts, before anything else. Returns the peer's message.

        Raises:
            ContractRefused: The contracts differ; raised at both ends, with the fields.
            PeerLost: The peer was silent for too long, or began with another message.
        """
        try:
            self.channel.send(self.ours)
            hello = self._hello()
            require_same(*_ends(self.ours, hello))
            _require_same_planes(self.ours, hello)
            self.wire.meet(hello.agent, starts_of(hello.planes))
        except HandoverError:
            self.close()
            raise
        self.theirs = hello
        return hello

    def _hello(self) -> Hello:
        until = time.monotonic() + self.channel.silence_s
        while (left := until - time.monotonic()) > 0:
            message = self.channel.receive(left)
            if isinstance(message, Hello):
                return message
            if message is not None:
                raise PeerLost(
                    f"the other process began with {type(message).__name__}, expected Hello"
                )
        raise PeerLost(f"the other process did not say hello within {self.channel.silence_s:g} s")

    def close(self) -> None:
        """Close the wire, then the channel: a peer that sees the channel closed knows that traffic ended."""
        self.wire.close()
        self.channel.close()


def nixl_wire(
    group: PoolGroup,
    connection: Connection,
    *more: tuple[int, int, int],
    thread: bool | None = None,
) -> NixlWire:
    """Return NIXL over the group's device memory and ``more`` regions of the same kind.

    ``connection`` tells whether the peer is on this host; for ``thread`` see :class:`NixlWire`. CUDA
    memory is registered with its own device current.
    """
    device = group.mirrors[0].device.device
    on_gpu = device.type == "cuda"
    regions = [*regions_of(group), *more]
    with torch.cuda.device(device if on_gpu else -1):
        kind, near = "VRAM" if on_gpu else "DRAM", same_host(connection)
        return NixlWire(regions, kind, near=near, thread=thread)


def _ends(ours: Hello, theirs: Hello) -> tuple[Fields, Fields]:
    """Return prefill's contract and decode's."""
    ends = {ours.role: ours.contract, theirs.role: theirs.contract}
    if set(ends) != {"prefill", "decode"}:
        raise HandoverError(
            f"this end is {ours.role} and the other {theirs.role}, expected one each"
        )
    return ends["prefill"], ends["decode"]


def _require_same_planes(ours: Hello, theirs: Hello) -> None:
    """Refuse a peer that lists its tiles in another order: bytes would land in another tile's place.

    Raises:
        ContractRefused: With the first plane that differs.
    """
    ends = {hello.role: [_name_of(plane) for plane in hello.planes] for hello in (ours, theirs)}
    found = (
        (f"plane {number}", *pair)
        for number, pair in enumerate(
            zip_longest(ends["prefill"], ends["decode"], fillvalue=ABSENT)
        )
        if pair[0] != pair[1]
    )
    first = next(found, None)
    if first is not None:
        raise ContractRefused([first])


def _name_of(plane: Plane) -> str:
    return f"{plane.pool}.{plane.component} layer {plane.layer} of {plane.page_bytes} B"


class Pump:
    """Runs an end's ``step`` in a loop on a thread of its own.

    Args:
        step: Listens for at most the given seconds; returns the limit for its next call.
        lose: Gives up the peer with a reason. Called when a step raises, so that nobody waits on.
        device: The device of the pools; a GPU becomes the thread's current device.
    """

    def __init__(
        self,
        step: Callable[[float], float],
        lose: Callable[[str], None],
        name: str,
        device: torch.device,
    ) -> None:
        self._step = step
        self._lose = lose
        self._device = device
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        patience = 0.0
        with guard_for(self._device)():  # a transfer's events may be polled during a graph capture
            while not self._ended:
                try:
                    patience = self._step(patience)
                except Exception as error:  # noqa: BLE001 - waiters get it as the reason
                    self._lose(f"{type(error).__name__}: {error}")
                    patience = IDLE_S

    def close(self, timeout: float) -> bool:
        """Stop after the current step; False if it does not end within ``timeout`` seconds."""
        self._ended = True
        self._thread.join(timeout)
        return not self._thread.is_alive()
