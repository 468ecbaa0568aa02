"""Lines on a text stream."""

import io
import os

import pytest
from tests.exporters.samples import copied, finding, health

from hicache_dbg.exporters.stderr import StderrSink
from hicache_dbg.tracer.settings import Lines
from hicache_dbg.tracer.sink import SinkError


def test_it_writes_a_line_a_path_and_every_finding() -> None:
    """By default the stream gets each path once, each finding, and a summary."""
    stream = io.StringIO()
    sink = StderrSink(stream=stream)
    sink.emit([copied(), copied(), finding(), finding()])
    sink.emit([copied(), health()])
    sink.close()
    assert [text.split()[1].partition("=")[0] for text in stream.getvalue().splitlines()] == [
        "pool",
        "finding",
        "finding",
        "health",
    ]


def test_it_writes_to_the_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an explicit stream, lines go to the current standard error."""
    StderrSink(Lines.ALL).emit([copied(), copied()])
    assert capsys.readouterr().err.count("[HICACHE_DBG] pool=deepseek_v4_c128") == 2


def test_a_broken_pipe_is_a_counted_loss() -> None:
    """A reader that is gone costs only the lines, which are counted."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = open(writing, "w", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115 - an fd
    sink = StderrSink(Lines.ALL, stream=stream)
    with pytest.raises(SinkError, match="Broken pipe; 2 lines lost") as caught:
        sink.emit([copied(), finding()])
    assert (caught.value.reason, caught.value.lost) == ("io", 2)
    with pytest.raises(BrokenPipeError):
        stream.close()
