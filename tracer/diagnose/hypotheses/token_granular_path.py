"""Single slots were copied where pages are indexed."""

from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis, Verdict
from hicache_dbg.tracer.words import counted, every


def _judge(evidence: Evidence) -> tuple[Verdict, str]:
    total = sum(evidence.paths.values())
    if not total:
        return Verdict.UNDECIDED, "no copy was recorded"
    taken = {
        f"{pool} {op}": count
        for (pool, op, granular, _), count in evidence.paths.items()
        if granular
    }
    if not taken:
        said = f"{every(total, 'copy')} say{'s' * (total == 1)} token_granular=False"
        if not evidence.unseen:
            return Verdict.FALSIFIED, said
        missing = counted(evidence.unseen, "operation")
        return Verdict.UNDECIDED, f"{said}, but the events of {missing} are missing"
    return Verdict.CONFIRMED, (
        "token_granular=True in " + ", ".join(f"{count} of {path}" for path, count in taken.items())
    )


HYPOTHESIS = Hypothesis(
    name="token_granular_path",
    question="Was the token-granular path taken where pages are indexed?",
    falsified_by="every copy says token_granular=False",
    confirmed_by="a copy that says token_granular=True",
    words="the token-granular path was taken",
    judge=_judge,
    advice="look at that path's index arithmetic first",
    decide_by="HICACHE_DBG_CHECKSUM=off: counting paths needs no digest",
)
