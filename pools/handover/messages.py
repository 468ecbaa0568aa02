"""Messages between the ends, on the control channel and as the notification of a transfer."""

import msgspec

from hicache_dbg.pools.handover.planes import Plane

__all__ = [
    "Abort",
    "Beat",
    "Ended",
    "Hello",
    "Landed",
    "Message",
    "Offer",
    "Room",
    "decode",
    "encode",
]


class _Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of all messages."""


class Hello(_Base, frozen=True, tag="hello"):
    """First message of either end: contract, number and location of its pages, NIXL agent."""

    role: str
    contract: dict[str, str]
    pages: int
    device: int
    planes: tuple[Plane, ...]
    agent: bytes


class Offer(_Base, frozen=True, tag="offer"):
    """Prefill has computed a request of ``pages`` pages and ``tokens`` tokens.

    ``trace`` holds the trace and span id of the request at prefill, both empty without a span.
    """

    attempt: int
    request: str
    pages: int
    tokens: int
    trace: tuple[str, str] = ("", "")


class Room(_Base, frozen=True, tag="room"):
    """Decode's pages for an offer. Prefill may write them from now on."""

    attempt: int
    pages: tuple[int, ...]


class Abort(_Base, frozen=True, tag="abort"):
    """This end declines the request, or no longer wants it."""

    attempt: int
    reason: str


class Ended(_Base, frozen=True, tag="ended"):
    """Prefill gives up an attempt that did not land.

    ``torn``: the write was posted, and its handle released before completion.
    """

    attempt: int
    reason: str
    torn: bool = False


class Beat(_Base, frozen=True, tag="beat"):
    """Heartbeat."""


class Landed(_Base, frozen=True, tag="landed"):
    """Every byte of a transfer has arrived, if sent as its notification.

    On the channel it only wakes decode.
    """

    attempt: int
    pages: int


Message = Hello | Offer | Room | Abort | Ended | Beat | Landed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Serialize a message."""
    return _encoder.encode(message)


def decode(raw: bytes) -> Message:
    """Parse a message. Raises ``msgspec.DecodeError`` on anything else."""
    return _decoder.decode(raw)
