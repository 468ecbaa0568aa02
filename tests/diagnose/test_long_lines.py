"""Lines of a recording that are longer than any reader takes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.samples import copied, finding

from hicache_dbg.exporters.encoding import LONGEST_LINE
from hicache_dbg.exporters.recording import RecordingSink
from hicache_dbg.tracer.diagnose import long_lines as module
from hicache_dbg.tracer.diagnose.database import Database
from hicache_dbg.tracer.diagnose.gather import gather
from hicache_dbg.tracer.diagnose.long_lines import long_lines, without
from hicache_dbg.tracer.diagnose.recordings import RecordingSource

MOST = 5


@given(lines=st.lists(st.binary(max_size=14).map(lambda line: line.replace(b"\n", b"x"))))
def test_exactly_the_long_lines_are_left_out(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the lengths, and whether or not the last line is ended."""
    folder = tmp_path_factory.mktemp("lines")
    file = folder / "run.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST_LINE", MOST)
        for text in (b"\n".join(lines), b"".join(line + b"\n" for line in lines)):
            file.write_bytes(text)
            every = re.findall(rb"[^\n]*\n|[^\n]+", text)
            kept = [line for line in every if len(line.removesuffix(b"\n")) <= MOST]
            found = long_lines(file)
            assert without(found, file, folder).read_bytes() == b"".join(kept)
            assert all(text[begin:end] not in kept for begin, end in found)


def test_a_recording_is_read_past_a_line_of_any_length(tmp_path: Path) -> None:
    """It costs itself alone, one sentence says so, and the file is not changed."""
    sink = RecordingSink(tmp_path, "run")
    sink.emit([copied(verified=3), finding()])
    sink.close()
    with sink.path.open("ab") as file:
        file.write(b"\0" * (2 * LONGEST_LINE + 100) + b"\n")
    size = sink.path.stat().st_size
    with sink.path.open("ab") as file:
        file.write(sink.path.read_bytes().splitlines()[1] + b"\n")
    told: list[str] = []
    with Database(RecordingSource([sink.path], told.append)) as database:
        evidence = gather(database)
    assert (evidence.tiles.verified, len(evidence.findings)) == (6, 1)
    assert told == [f"{sink.path}: 1 line skipped, longer than 16 MiB: the file is damaged"]
    assert sink.path.stat().st_size > size
