"""One key stood for two contents, or a content had two keys."""

from hicache_dbg.tracer.diagnose.by_class import by_class, came_back_equal
from hicache_dbg.tracer.diagnose.deciding import by_comparing
from hicache_dbg.tracer.diagnose.evidence import Evidence
from hicache_dbg.tracer.events import FaultClass, Op


def _alibi(evidence: Evidence) -> str | None:
    """Rule it out if everything that came back, by whatever key, is what was stored."""
    return came_back_equal(evidence, Op.LOAD, Op.FETCH)


HYPOTHESIS = by_class(
    "foreign_key",
    FaultClass.KEY_IDENTITY,
    question="Does one key stand for two contents (namespace, model, rank left out of the key)?",
    words="one key stands for two contents, or one content has two keys",
    alibi=_alibi,
    falsified_by="everything fetched and loaded is what was stored under its key",
    advice="put model fingerprint, dtype, layout, rank and namespace into the key, and empty the store once",
    decide_by=by_comparing,
)
