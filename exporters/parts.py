"""The error of everything here that needs a package which is not installed."""

__all__ = ["PartMissingError"]


class PartMissingError(Exception):
    """An optional part of the environment is missing; the message says what to install.

    Args:
        what: what needs it, as the beginning of the sentence: "the page needs".
        package: what is not installed.
        extra: ours, that brings it along.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} the {package} package, which is not installed: pip install 'hicache-dbg[{extra}]'"
        )
