"""Warn once if there is nothing to trace: batches are served, but no host pool was ever built."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_dbg.tracer.attach.sglang.classes import ours
from hicache_dbg.tracer.attach.sglang.versions import supported

__all__ = ["Idle"]

_log = logging.getLogger("hicache_dbg")


class Idle:
    """Checks at the first batch of a process: by then everything that holds pages is built.

    Args:
        begun: returns whether there is a session.
        version: of SGLang.
    """

    def __init__(self, begun: Callable[[], bool], version: str) -> None:
        self._begun = begun
        self._doubt = (
            "" if supported(version) else f", or does sglang {version} keep its pools elsewhere"
        )
        self._checked = False

    def batching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that takes requests into a batch."""

        @wraps(original)
        def prepare_for_extend(*args: Any, **kwargs: Any) -> Any:
            if not self._checked:
                self._checked = True
                if not self._begun():
                    _log.warning(
                        "hicache-dbg is attached and has nothing to trace: requests are being served, but this "
                        "process has built no host pool; is --enable-hierarchical-cache set%s?",
                        self._doubt,
                    )
            return original(*args, **kwargs)

        return ours(prepare_for_extend)
