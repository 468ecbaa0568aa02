"""What the two ends tell each other: on the control channel, and with a transfer's notification."""

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
    """What all messages are."""


class Hello(_Base, frozen=True, tag="hello"):
    """The first word of either end: its contract, how many pages it has and where, its agent."""

    role: str
    contract: dict[str, str]
    pages: int
    device: int
    planes: tuple[Plane, ...]
    agent: bytes


class Offer(_Base, frozen=True, tag="offer"):
    """Prefill has computed a request: so many pages, for so many tokens.

    ``trace`` is the trace and span id of the request at prefill, empty where there is none.
    """

    attempt: int
    request: str
    pages: int
    tokens: int
    trace: tuple[str, str] = ("", "")


class Room(_Base, frozen=True, tag="room"):
    """Decode's pages for an offer: from now on prefill may write them."""

    attempt: int
    pages: tuple[int, ...]


class Abort(_Base, frozen=True, tag="abort"):
    """An end does not want this one, or not any more."""

    attempt: int
    reason: str


class Ended(_Base, frozen=True, tag="ended"):
    """Prefill's last word on an attempt that did not land.

    ``torn``: its write was posted, and its handle released before it was done.
    """

    attempt: int
    reason: str
    torn: bool = False


class Beat(_Base, frozen=True, tag="beat"):
    """Still here."""


class Landed(_Base, frozen=True, tag="landed"):
    """A transfer's notification: every byte of it is there. On the channel it wakes decode, no more."""

    attempt: int
    pages: int


Message = Hello | Offer | Room | Abort | Ended | Beat | Landed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """As it travels."""
    return _encoder.encode(message)


def decode(raw: bytes) -> Message:
    """Back again; ``msgspec.DecodeError`` on anything else."""
    return _decoder.decode(raw)
