"""What can go wrong between prefill and decode; each is a situation that a caller handles."""

from collections.abc import Sequence

__all__ = ["ContractRefused", "Difference", "HandoverError", "NixlMissing", "PeerLost", "Refused"]

Difference = tuple[str, str, str]
"""A field, and what prefill and decode have in it."""


class HandoverError(RuntimeError):
    """A handover that did not come about; the request's pages are never read."""


class NixlMissing(HandoverError):  # noqa: N818 (a state of the machine, not of the program)
    """NIXL is not installed, or does not start."""


class ContractRefused(HandoverError):  # noqa: N818 (says who did what)
    """The two ends do not mean the same bytes; nothing was moved."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        told = "; ".join(
            f"{field}: prefill has {ours}, decode has {theirs}"
            for field, ours, theirs in differences
        )
        super().__init__(f"prefill and decode disagree, nothing was moved: {told}")
        self.differences = tuple(differences)


class Refused(HandoverError):  # noqa: N818
    """The other end does not take, or does not give, this request; the message says why."""


class PeerLost(HandoverError):  # noqa: N818
    """The other process is gone, or was silent for too long."""
