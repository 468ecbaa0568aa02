"""A count of elements was used where bytes were meant."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypotheses.host_sized_for_another_dtype import disagreeing
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.words import every


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    if not evidence.mirrors:
        return Verdict.UNDECIDED, "no mirror's geometry was recorded"
    ratios = []
    for mirror in evidence.mirrors:
        for device, host in disagreeing(mirror):
            big, small = sorted((device.slot_bytes, host.slot_bytes), reverse=True)
            if big == small:  # only the host's page is longer: padding
                continue
            if big in (2 * small, 4 * small):
                return Verdict.CONFIRMED, (
                    f"{mirror.pool}: {device.slot_bytes} B a slot on the device, {host.slot_bytes} B on the "
                    f"host: exactly {big // small} to 1, the size of an element"
                )
            ratios.append(f"{mirror.pool} {device.slot_bytes}:{host.slot_bytes}")
    if ratios:
        return (
            Verdict.FALSIFIED,
            f"the ends differ ({', '.join(ratios)}), and not by an element's size",
        )
    return (
        Verdict.FALSIFIED,
        f"both ends of {every(len(evidence.mirrors), 'mirror')} hold the same bytes a slot",
    )


HYPOTHESIS = Hypothesis(
    name="elements_taken_for_bytes",
    question="Was a count of elements used where bytes were meant?",
    falsified_by="no mirror's ends differ by exactly an element's size",
    confirmed_by="a mirror whose ends differ by exactly 2 or 4 to 1",
    words="elements were taken for bytes",
    judge=_judge,
    decide_by="HICACHE_DBG=1 from the start of the process, so that registration is seen",
    advice="multiply by the itemsize of the device tensor",
)
