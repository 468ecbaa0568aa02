"""Every copy is proven good: the fault is elsewhere."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.events import Op


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    tiles = evidence.tiles
    if tiles.mismatched or evidence.findings:
        kinds = len(evidence.kinds_of_finding())
        what = "kind" if kinds == 1 else "kinds"
        return Verdict.FALSIFIED, f"{tiles.mismatched} tiles mismatched, {kinds} {what} of finding"
    back = evidence.of_op(Op.LOAD, Op.FETCH, Op.RECV)
    if not back.verified:
        return Verdict.UNDECIDED, "no loaded tile was compared"
    if tiles.skipped:
        return Verdict.UNDECIDED, (
            f"{tiles.verified} tiles verified, but {tiles.skipped} of {tiles.moved} were not looked at"
        )
    if back.witnessed:
        return Verdict.UNDECIDED, (
            f"{back.verified} tiles verified, but {back.witnessed} that came back had nothing to be compared with"
        )
    if evidence.unseen:
        return Verdict.UNDECIDED, (
            f"{tiles.verified} tiles verified, but {evidence.unseen} operations were lost on the way here"
        )
    return Verdict.CONFIRMED, (
        f"all {back.verified} tiles that came back equal what was backed up"
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
    decide_by="HICACHE_DBG_CHECKSUM=loads with every pool and op traced",
)
