"""Closed sets shared by the exporters: loss reasons of each sink, and duration buckets.

A missing series reads as "no data", not as zero, so exporters create each of these at 0 before the
first event. A reason that is not listed still gets its series once it occurs.
"""

from collections.abc import Mapping

__all__ = ["DURATION_BUCKETS_S", "LOSS_REASONS"]

#: Losses in a sink's outbox, and those of a sink that could not be built.
_ANY_SINK = ("queue_full", "closed", "refused")

#: Why each sink of this package loses events.
LOSS_REASONS: Mapping[str, tuple[str, ...]] = {
    "bus": ("queue_full", "closed"),
    "journald": (*_ANY_SINK, "absent", "blocked"),
    "otel": (*_ANY_SINK, "export"),
    "prometheus": (*_ANY_SINK, "enospc"),
    "recording": (*_ANY_SINK, "enospc", "eio"),
    "stderr": (*_ANY_SINK, "io"),
}

#: In seconds. One page of one layer over PCIe takes tens of microseconds, a stuck tier seconds.
DURATION_BUCKETS_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
