"""Exit codes, what leads to each, and the exception that carries one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_dbg.tracer.diagnose.report import Report

__all__ = [
    "CORRUPT",
    "FAULTY",
    "INTERRUPTED",
    "MISSING",
    "OK",
    "USAGE",
    "CommandError",
    "of_reports",
]

OK = 0
CORRUPT = 1
USAGE = 2
MISSING = 3
FAULTY = 70
INTERRUPTED = 130


def of_reports(*reports: "Report") -> int:
    """Return 1 if a report is corrupt, 2 if one compared nothing and so proves nothing, else 0."""
    if any(report.corrupt for report in reports):
        return CORRUPT
    return OK if all(report.tiles.verified for report in reports) else USAGE


class CommandError(Exception):
    """An error that ends the command with a one-line message and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
