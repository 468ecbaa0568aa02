"""Exit codes, and the error that carries one."""

__all__ = ["CORRUPT", "INTERRUPTED", "MISSING", "OK", "USAGE", "CommandError"]

OK = 0
CORRUPT = 1
USAGE = 2
MISSING = 3
INTERRUPTED = 130


class CommandError(Exception):
    """Something that ends the command with one clear line and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
