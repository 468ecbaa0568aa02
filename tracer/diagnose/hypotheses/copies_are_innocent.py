"""Every copy is proven good: the fault is elsewhere."""

from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import Op
from hicache_dbg.tracer.words import counted, every


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    tiles = evidence.tiles
    if tiles.mismatched or evidence.findings:
        kinds = counted(len(evidence.kinds_of_finding()), "kind")
        wrong = counted(tiles.mismatched, "tile")
        return Verdict.FALSIFIED, f"{wrong} mismatched, {kinds} of finding"
    good = counted(tiles.verified, "tile")
    back = evidence.of_op(Op.LOAD, Op.FETCH, Op.RECV)
    if not back.verified:
        return Verdict.UNDECIDED, "no loaded tile was compared"
    if tiles.skipped:
        return Verdict.UNDECIDED, (
            f"{good} verified, but {tiles.skipped} of {tiles.moved} were not looked at"
        )
    if back.witnessed:
        return Verdict.UNDECIDED, (
            f"{counted(back.verified, 'tile')} verified, but {back.witnessed} that came back had nothing to "
            "be compared with"
        )
    if evidence.unseen:
        return Verdict.UNDECIDED, (
            f"{good} verified, but {counted(evidence.unseen, 'operation')} lost on the way here"
        )
    return Verdict.CONFIRMED, (
        f"{every(back.verified, 'tile')} that came back equal{'s' * (back.verified == 1)} what was backed up"
        + ("; sessions are corrupt all the same" if evidence.sessions_corrupted else "")
    )


HYPOTHESIS = Hypothesis(
    name="copies_are_innocent",
    question="Is every copy between the tiers good?",
    falsified_by="one mismatched tile, or any finding",
    confirmed_by="every loaded tile compared equal, none skipped, no operation lost",
    words="every copy is proven good",
    judge=_judge,
    rank=0,
    advice="if answers are still wrong, look at the device pages and the order of device writes, not at the copies",
    decide_by=by_comparing,
)
