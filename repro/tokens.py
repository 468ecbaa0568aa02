"""The vocabulary: a few control tokens, followed by content tokens without further meaning."""

from enum import IntEnum

__all__ = ["FIRST_CONTENT", "VOCABULARY", "Special"]


class Special(IntEnum):
    """Control tokens. A model emits ``END`` and ``TOOL_CALL``.

    The others mark pieces of a prompt.
    """

    END = 1
    TOOL_CALL = 2
    SYSTEM = 3
    USER = 4
    TOOL_RESULT = 5
    ASSISTANT = 6


FIRST_CONTENT = 8
"""The first content token; those below are reserved for control."""

VOCABULARY = 512
"""How many tokens there are."""
