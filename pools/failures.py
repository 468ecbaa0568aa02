"""Errors of worker threads, kept until a caller has seen them."""

from collections import Counter
from dataclasses import dataclass
from threading import Lock

from hicache_dbg.pools.transfer import CopyOp, TransferError

__all__ = ["Failures"]


#: Most failures kept with their exception: a traceback keeps its frames' objects alive, and a
#: caller may never ask.
MOST = 64


@dataclass(slots=True)
class _Failure:
    op: CopyOp
    error: Exception
    told: bool = False


class Failures:
    """Failed operations, all counted, the first and the latest kept whole; safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures: list[_Failure] = []
        self._gone: Counter[bool] = Counter()  # dropped failures, by whether a caller saw them

    def add(self, op: CopyOp, error: Exception) -> None:
        """Record the error of ``op``."""
        with self._lock:
            if len(self._failures) == MOST:
                told = (at for at, item in enumerate(self._failures) if item.told)
                self._gone[self._failures.pop(next(told, 1)).told] += 1
            self._failures.append(_Failure(op, error))

    def told(self, op_id: int) -> None:
        """Mark the error of operation ``op_id`` as seen by a caller."""
        with self._lock:
            for failure in self._failures:
                if failure.op.op_id == op_id:
                    failure.told = True

    def report(self, *, untold_only: bool = False) -> None:
        """Raise :class:`TransferError` for the recorded failures and forget them.

        With ``untold_only``, failures that a caller has already seen are forgotten silently.
        """
        with self._lock:
            failures = [item for item in self._failures if not (untold_only and item.told)]
            count = len(failures) + self._gone[False] + (0 if untold_only else self._gone[True])
            self._failures = []
            self._gone.clear()
        if failures:
            first = failures[0]
            raise TransferError(
                f"failed copies: {count}, first {first.op.kind} {first.op.op_id} of "
                f"{first.op.host_generations.size} pages: {first.error}"
            ) from first.error
