"""Prefill and decode disagree in geometry or counts, or a page arrived with different bytes."""

from hicache_dbg.tracer.diagnose.by_class import by_class, no_traffic
from hicache_dbg.tracer.events import FaultClass, Op

HYPOTHESIS = by_class(
    "prefill_and_decode_disagree",
    FaultClass.PD_CONTRACT,
    question="Do prefill and decode disagree?",
    words="prefill and decode disagree",
    alibi=no_traffic(Op.SEND, Op.RECV, what="no page was handed from prefill to decode"),
    falsified_by="nothing was handed over, or every received tile is equal",
    advice="compare the geometry table of both sides field by field before the first transfer",
    decide_by="record both sides and name them together: hicache-dbg diagnose --together PREFILL DECODE",
)
