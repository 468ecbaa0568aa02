"""Errors of workers, kept until somebody has been told."""

from dataclasses import dataclass
from threading import Lock

from hicache_dbg.pools.transfer import CopyOp, TransferError

__all__ = ["Failures"]


@dataclass(slots=True)
class _Failure:
    op: CopyOp
    error: Exception
    told: bool = False


class Failures:
    """Failed operations; safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures: list[_Failure] = []

    def add(self, op: CopyOp, error: Exception) -> None:
        """Keep the error of ``op``."""
        with self._lock:
            self._failures.append(_Failure(op, error))

    def told(self, op_id: int) -> None:
        """Somebody who waited for the operation has its error."""
        with self._lock:
            for failure in self._failures:
                if failure.op.op_id == op_id:
                    failure.told = True

    def report(self, *, untold_only: bool = False) -> None:
        """Raise :class:`TransferError` for what is kept, and forget it."""
        with self._lock:
            failures = [item for item in self._failures if not (untold_only and item.told)]
            self._failures = []
        if failures:
            first = failures[0]
            raise TransferError(
                f"{len(failures)} copies failed, first {first.op.kind} {first.op.op_id} of "
                f"{first.op.host_generations.size} pages: {first.error}"
            ) from first.error
