"""The error raised by everything here that needs a package which is not installed."""

__all__ = ["PartMissingError"]


class PartMissingError(Exception):
    """An optional part of the environment is missing; the message says what to install.

    Args:
        what: what needs it, as the beginning of the sentence: "the page needs".
        package: the package that is not installed.
        extra: our extra that installs it.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} the {package} package, which is not installed: pip install 'hicache-dbg[{extra}]'"
        )
