"""Errors of a handover; a caller is expected to handle each of them."""

from collections.abc import Sequence

__all__ = ["ContractRefused", "Difference", "HandoverError", "NixlMissing", "PeerLost", "Refused"]

Difference = tuple[str, str, str]
"""A field, with prefill's value and decode's."""


class HandoverError(RuntimeError):
    """A handover failed; the request's pages are never read."""


class NixlMissing(HandoverError):  # noqa: N818 (a state of the machine, not of the program)
    """NIXL is not installed or does not start."""


class ContractRefused(HandoverError):  # noqa: N818 (says who did what)
    """The ends disagree on the layout of the bytes; nothing was moved."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        told = "; ".join(
            f"{field}: prefill has {ours}, decode has {theirs}"
            for field, ours, theirs in differences
        )
        super().__init__(f"prefill and decode disagree, nothing was moved: {told}")
        self.differences = tuple(differences)


class Refused(HandoverError):  # noqa: N818
    """The peer does not accept or does not deliver this request; the message says why."""


class PeerLost(HandoverError):  # noqa: N818
    """The peer process is gone, or was silent for too long."""
