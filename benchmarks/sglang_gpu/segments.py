"""What is added to the host's time of an operation: before its first copy, between its copies, behind the last.

A load calls SGLang's copy once a layer, and what those calls take varies by more than what we add around them.
So each copy is stamped as it begins, attached and detached alike. What lies between two copies is alike, and the
middle of an operation's gaps counts for each of them.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = ["Added", "Parts", "Stamps", "alternate"]

#: How the functions are named through which SGLang's pools copy.
_COPIES = ("transfer_kv_", "transfer_cache_", "jit_transfer_")
_NOT_TIMED = 2


class Parts(NamedTuple):
    """Microseconds of an operation on its thread."""

    before: float
    between: float
    behind: float

    @classmethod
    def of(cls, times_ns: Sequence[int]) -> "Parts":
        """Return the parts of an operation by the times of its begin, of its copies and of its end."""
        began, *copies, ended = times_ns
        if not copies:
            raise RuntimeError("no copy was seen: SGLang names its functions in another way")
        gaps = [later - one for one, later in pairwise(copies)]
        between = _middle_half(gaps) * len(gaps) if gaps else 0.0
        return cls((copies[0] - began) * 1e-3, between * 1e-3, (ended - copies[-1]) * 1e-3)

    @classmethod
    def middle(cls, of: "Sequence[Parts]") -> "Parts":
        """Return the mean of the middle half of each part."""
        return cls(*(_middle_half(part) for part in zip(*of, strict=True)))

    def __sub__(self, other: "Parts") -> "Parts":
        return Parts(*(one - two for one, two in zip(self, other, strict=True)))

    @property
    def us(self) -> float:
        """All of them together."""
        return sum(self)


class Stamps:
    """Stamps each copy of SGLang's pools as it begins."""

    def __init__(self) -> None:
        self._times_ns: list[int] = []

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Stamp within the context."""
        replaced = [
            (module, name, value)
            for home, module in list(sys.modules.items())
            if home.startswith("sglang.srt.mem_cache")
            for name, value in list(vars(module).items())
            if name.startswith(_COPIES) and callable(value)
        ]
        try:
            for module, name, value in replaced:
                setattr(module, name, self._stamped(value))
            yield
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)

    def _stamped(self, copy: Callable[..., Any]) -> Callable[..., Any]:
        note, clock = self._times_ns.append, time.perf_counter_ns

        def stamped(*args: Any, **kwargs: Any) -> Any:
            note(clock())
            return copy(*args, **kwargs)

        return stamped

    def run(self, operation: Callable[[], Any]) -> tuple[Parts, Any]:
        """Run an operation; return its parts, and what it returned."""
        self._times_ns.clear()
        began = time.perf_counter_ns()
        result = operation()
        ended = time.perf_counter_ns()
        return Parts.of([began, *self._times_ns, ended]), result


#: A context in which to measure, and what measures: it returns the parts of a few operations.
Mode = tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Sequence[Parts]]]


def alternate(modes: Sequence[Mode], rounds: int) -> list[list[Parts]]:
    """Measure in each mode in turn, in alternating order; return each mode's middles, one a round.

    Many short rounds are better than few long ones: the state of the machine changes slowly.
    """
    values: list[list[Parts]] = [[] for _ in modes]
    for number in range(rounds + _NOT_TIMED):
        for (context, measure), mine in list(zip(modes, values, strict=True))[
            :: (1, -1)[number % 2]
        ]:
            with context():
                parts = measure()
            if number >= _NOT_TIMED:
                mine.append(Parts.middle(parts))
    return values


class Added(NamedTuple):
    """What is added, in us, and its standard error; the same for each part."""

    us: float
    error: float
    parts: Parts
    errors: Parts

    @classmethod
    def of(cls, ours: Sequence[Parts], bare: Sequence[Parts]) -> "Added":
        """Compare two modes round by round."""
        more = [one - two for one, two in zip(ours, bare, strict=True)]
        sums = [one.us for one in more]
        errors = Parts(*(_error(part) for part in zip(*more, strict=True)))
        return cls(_middle_half(sums), _error(sums), Parts.middle(more), errors)

    def __str__(self) -> str:
        names = ("before", "between", "behind")
        each = ", ".join(
            f"{name} copies {us:+.1f} ({error:.1f})"
            for name, us, error in zip(names, self.parts, self.errors, strict=True)
        )
        return f"{self.us:+.1f} us ({self.error:.1f}): {each}"

    def over(self, add: float) -> str:
        """Return it as a multiple of an ``add_``, which takes ``add`` us; standard errors in brackets."""
        return f"{self.us / add:.2f} add_ ({self.error / add:.2f}), {self}"


def _middle_half(values: Sequence[float]) -> float:
    """Return the mean of the middle half: as robust as one needs, and more exact than the median."""
    ordered, cut = sorted(values), len(values) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _error(values: Sequence[float]) -> float:
    """Return the standard error of that mean, from the values with both outer quarters drawn in."""
    ordered, cut = sorted(values), len(values) // 4
    drawn_in = [min(max(one, ordered[cut]), ordered[-1 - cut]) for one in ordered]
    share = 1 - 2 * cut / len(ordered)
    return float(statistics.stdev(drawn_in) / (share * math.sqrt(len(ordered))))
