"""Mooncake-format traces: parsing, and the requests of a replay."""

import json
from pathlib import Path

import numpy as np
import pytest

from hicache_dbg.repro.config import ConfigError
from hicache_dbg.repro.sets import POOL_SETS
from hicache_dbg.repro.trace import (
    Trace,
    TraceRequest,
    TraceWorkload,
    read_trace,
)
from hicache_dbg.repro.workload import End, Reply, Stop, Turn

GOOD = {"timestamp": 0, "input_length": 1000, "output_length": 100, "hash_ids": [7, 8]}


def _write(path: Path, *lines: object) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def test_a_good_file_is_read_to_its_end(tmp_path: Path) -> None:
    """Every line is a request; blank lines and unknown fields are ignored."""
    trace = read_trace(_write(tmp_path / "t", GOOD, "", GOOD | {"type": "chat"}))
    assert trace.error is None
    assert trace.requests == (TraceRequest(0, 1000, 100, (7, 8)),) * 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Input data was truncated"),
        ("[1]", "Expected `object`, got `array`"),
        (GOOD | {"input_length": "many"}, "Expected `int`, got `str` - at `$.input_length`"),
        (GOOD | {"output_length": 0}, "Expected `int` >= 1 - at `$.output_length`"),
        (GOOD | {"hash_ids": [7, -1]}, "Expected `int` >= 0 - at `$.hash_ids[1]`"),
        ({"timestamp": 0}, "Object missing required field `input_length`"),
        (
            GOOD | {"hash_ids": [7]},
            "1 hash_ids for an input_length of 1000, expected 2 (one for each 512 tokens)",
        ),
    ],
)
def test_a_malformed_line_is_told_and_what_came_before_is_kept(
    tmp_path: Path, line: object, reason: str
) -> None:
    """The error has the file, the line number and the reason; reading stops there."""
    path = _write(tmp_path / "t", GOOD, "", GOOD, line, GOOD)
    trace = read_trace(path)
    assert len(trace.requests) == 2
    assert trace.error is not None
    assert trace.error.line == 4
    assert str(trace.error) == f"{path}, line 4: {reason}"


def test_a_limit_ends_the_reading(tmp_path: Path) -> None:
    """Lines beyond the requested number are not parsed, malformed or not."""
    trace = read_trace(_write(tmp_path / "t", GOOD, GOOD, "{"), limit=2)
    assert (len(trace.requests), trace.error) == (2, None)


def test_bytes_that_are_no_text_are_an_error_of_their_line(tmp_path: Path) -> None:
    """Binary junk is a malformed line like any other."""
    path = tmp_path / "t"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    trace = read_trace(path)
    assert len(trace.requests) == 1
    assert trace.error is not None
    assert trace.error.line == 2


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The message has the path and the system's reason."""
    with pytest.raises(ConfigError, match=r"trace .*nowhere cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")


def test_an_empty_trace_cannot_be_replayed(tmp_path: Path) -> None:
    """A trace without requests is an error, with the malformed line if that is why."""
    with pytest.raises(ConfigError, match=r"the trace holds no request to replay$"):
        TraceWorkload(Trace(()), 16)
    with pytest.raises(ConfigError, match=r"no request to replay \(.*line 1: "):
        TraceWorkload(read_trace(_write(tmp_path / "t", "{")), 16)


def test_the_public_trace_is_well_formed() -> None:
    """Mooncake's conversation trace is read completely, and its longest request fits the default."""
    path = Path(__file__).parents[3] / "shared" / "data" / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip(f"the public trace is not at {path}")
    trace = read_trace(path)
    assert (len(trace.requests), trace.error) == (12031, None)
    longest = TraceWorkload(trace, 16).longest()
    for pool_set in POOL_SETS.values():
        assert longest <= pool_set.trace_device_pages * pool_set.page_size


def _turns(*requests: TraceRequest, scale: int = 16) -> list[Turn]:
    return list(TraceWorkload(Trace(requests), scale).ready(0))


def test_equal_hash_ids_are_equal_blocks() -> None:
    """Two prompts agree exactly in the blocks with equal ids, at any position."""
    a, b = _turns(
        TraceRequest(0, 1536, 1, (1, 2, 3)), TraceRequest(1, 1536, 1, (1, 3, 2)), scale=16
    )
    assert np.array_equal(a.tokens[:16], b.tokens[:16])
    assert np.array_equal(a.tokens[16:32], b.tokens[32:])
    assert np.array_equal(a.tokens[32:], b.tokens[16:32])
    assert not np.array_equal(a.tokens[16:32], b.tokens[16:32])


def test_lengths_shrink_alike() -> None:
    """A block is `scale` tokens, a partial one in proportion, and nothing shrinks to zero."""
    turns = _turns(TraceRequest(0, 513, 1024, (1, 2)), TraceRequest(0, 1, 1, (1,)), scale=32)
    assert [(len(turn.tokens), turn.max_tokens) for turn in turns] == [(33, 64), (1, 1)]
    assert not any(turn.stops for turn in turns)


def test_requests_come_in_order_of_time() -> None:
    """They are sorted by time even if the file is not; each keeps its number."""
    late, early = TraceRequest(9, 1, 1, (1,)), TraceRequest(3, 1, 1, (2,))
    workload = TraceWorkload(Trace((late, early)), 16)
    turns = list(workload.ready(0))
    assert [turn.session for turn in turns] == [1, 0]
    assert workload.open()
    for turn in turns:
        assert not workload.answered(turn, Reply((9,), Stop.LENGTH), 0)
    assert not workload.open()
    assert {transcript.end for transcript in workload.transcripts.values()} == {End.DONE}
    assert workload.progress() == (2, 2)
