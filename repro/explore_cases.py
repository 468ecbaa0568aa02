"""Operations of readers in an explored schedule, and the case that a seed stands for."""

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from hicache_dbg.pools.backups import WritePolicy

__all__ = ["EAGERNESS", "READERS", "Case", "Operation", "case_of"]

READERS = 2
SEQUENCES = "abc"
MOST_PAGES = 4
MOST_OPERATIONS = 10
#: Probabilities of a preemption that is not forced; see :class:`Stage`.
EAGERNESS = (0.0, 0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a reader.

    A ``turn`` reads what is cached of the first ``pages`` pages of a sequence, computes the rest
    and caches it. A ``drop`` allocates that many device pages and frees them, which forces
    evictions.
    """

    kind: Literal["turn", "drop"]
    pages: int
    sequence: int = 0
    reader: int = 0

    def __str__(self) -> str:
        what = f"turn of {SEQUENCES[self.sequence]}," if self.kind == "turn" else "drop of"
        return f"reader {self.reader}: {what} {self.pages} page{'s' if self.pages > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule: who does what, the order chosen by ``seed``, and the engine's write policy."""

    operations: tuple[Operation, ...]
    seed: int
    eagerness: float
    policy: WritePolicy


def case_of(seed: int) -> Case:
    """Return the case that ``seed`` stands for; deterministic."""
    random = Random(seed)  # noqa: S311 (cases to try, not secrets)
    count = random.randint(3, MOST_OPERATIONS)
    return Case(
        tuple(_operation(random) for _ in range(count)),
        seed,
        random.choice(EAGERNESS),
        random.choice(get_args(WritePolicy)),
    )


def _operation(random: Random) -> Operation:
    reader = random.randrange(READERS)
    if random.random() < 0.3:
        return Operation("drop", random.randint(1, 2 * MOST_PAGES), reader=reader)
    sequence = random.randrange(len(SEQUENCES))
    return Operation("turn", random.randint(1, MOST_PAGES), sequence, reader)
