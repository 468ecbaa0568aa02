"""Real request traces in Mooncake's format, read and replayed at a smaller scale.

A line is ``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``
with one hash id for each block of 512 input tokens (FAST'25, github.com/kvcache-ai/Mooncake).
Equal ids are equal blocks, so prefix sharing, reuse distance and eviction are those of the trace.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.workload import End, Reply, Stop, Tokens, Transcript, Turn, content_tokens

__all__ = [
    "TRACE_BLOCK",
    "Trace",
    "TraceError",
    "TraceRequest",
    "TraceWorkload",
    "read_trace",
]

TRACE_BLOCK = 512
"""Input tokens that one hash id of a trace stands for."""

_BLOCK_STREAM = 4

_Count = Annotated[int, msgspec.Meta(ge=1)]
_HashId = Annotated[int, msgspec.Meta(ge=0)]


class TraceRequest(msgspec.Struct, frozen=True):
    """One line of a trace; times are milliseconds, lengths tokens."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_HashId, ...]


@dataclass(frozen=True, slots=True)
class TraceError:
    """The line (counted from 1) at which reading stopped, and why."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a file up to its end, the requested limit, or the first malformed line."""

    requests: tuple[TraceRequest, ...]
    error: TraceError | None = None


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """Read ``limit`` requests (default: all) of a Mooncake-format JSONL file.

    Blank lines are skipped. A malformed line ends the reading and is described in ``error``; the
    requests before it are kept.

    Raises:
        ConfigError: the file cannot be opened.
    """
    try:
        with path.open("rb") as lines:
            return _read_lines(str(path), lines, limit)
    except OSError as error:
        raise ConfigError(f"trace {path} cannot be read: {error.strerror}") from error


def _read_lines(path: str, lines: Iterable[bytes], limit: int | None) -> Trace:
    decoder = msgspec.json.Decoder(TraceRequest)
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    requests: list[TraceRequest] = []
    for number, line in islice(filled, limit):
        try:
            request = decoder.decode(line)
            _check_blocks(request)
        except (msgspec.MsgspecError, ValueError) as error:
            return Trace(tuple(requests), TraceError(path, number, str(error)))
        requests.append(request)
    return Trace(tuple(requests))


def _check_blocks(request: TraceRequest) -> None:
    blocks = -(-request.input_length // TRACE_BLOCK)
    if len(request.hash_ids) != blocks:
        raise ValueError(
            f"{len(request.hash_ids)} hash_ids for an input_length of {request.input_length}, "
            f"expected {blocks} (one for each {TRACE_BLOCK} tokens)"
        )


class TraceWorkload:
    """A replay in order of time, as fast as possible: one session and one turn per request.

    A block becomes ``scale`` tokens and lengths shrink in proportion, to at least 1 token. Replies
    have the trace's length: the end token does not stop them.
    """

    def __init__(self, trace: Trace, scale: int) -> None:
        if not trace.requests:
            where = f" ({trace.error})" if trace.error else ""
            raise ConfigError(f"the trace holds no request to replay{where}")
        self._scale = scale
        self._requests = trace.requests
        order = sorted(range(len(trace.requests)), key=lambda i: trace.requests[i].timestamp)
        self._coming: Iterator[int] = iter(order)
        self._answered = 0
        self.transcripts = {number: Transcript() for number in range(len(trace.requests))}

    def ready(self, step: int) -> Iterable[Turn]:  # noqa: ARG002 (arrival times are not waited for)
        """Hand out everything at once; the scheduler bounds how many run."""
        for number in self._coming:
            yield self._turn(number)

    def answered(self, turn: Turn, reply: Reply, step: int) -> bool:  # noqa: ARG002
        """Record the reply; a request has no second turn."""
        self._answered += 1
        end = End.ERROR if reply.stop is Stop.ERROR else End.DONE
        self.transcripts[turn.session] = Transcript([reply], end)
        return False

    def open(self) -> bool:
        """Return whether any request has no reply yet."""
        return self._answered < len(self._requests)

    def longest(self) -> int:
        """Return the length of the longest request with its reply, in tokens."""
        return max(
            self._scaled(request.input_length) + self._scaled(request.output_length)
            for request in self._requests
        )

    def progress(self) -> tuple[int, int]:
        """Return requests answered, and requests in all."""
        return self._answered, len(self._requests)

    def _turn(self, number: int) -> Turn:
        request = self._requests[number]
        blocks = [_block(hash_id, self._scale) for hash_id in request.hash_ids]
        tokens = np.concatenate(blocks)[: self._scaled(request.input_length)]
        output = self._scaled(request.output_length)
        return Turn(number, 0, tokens, output, stops={})

    def _scaled(self, tokens: int) -> int:
        return max(1, -(-tokens * self._scale // TRACE_BLOCK))


@lru_cache(maxsize=65536)
def _block(hash_id: int, scale: int) -> Tokens:
    """Return the tokens of a block, the same wherever its hash id occurs."""
    return content_tokens(scale, _BLOCK_STREAM, hash_id)
