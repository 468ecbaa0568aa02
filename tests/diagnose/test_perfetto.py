"""The timeline, parsed with Perfetto's own messages: slices nest, every flow arrives."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perfetto.protos.perfetto.trace.perfetto_trace_pb2 as pb2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.diagnose.test_gather import LOAD, recorded
from tests.exporters.samples import TIME_NS, copied, finding

from hicache_dbg.exporters.perfetto import write_perfetto
from hicache_dbg.exporters.recording_format import recordings_in
from hicache_dbg.exporters.timeline import Instant, Kind, Slice, Value
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.cli.progress import Advance
from hicache_dbg.tracer.events import Event

PAGES = {"host_pages": (1, 2), "generations": (5, 5)}
RUN: list[Event] = [
    copied(op_id=1, time_ns=TIME_NS, **PAGES),
    copied(op_id=2, time_ns=TIME_NS + 10**6, host_pages=(2, 3), generations=(5, 8)),
    copied(op_id=3, time_ns=TIME_NS + 2 * 10**6, **LOAD, **PAGES),
    copied(op_id=4, time_ns=TIME_NS + 3 * 10**6, **LOAD, host_pages=(3,), generations=(9,)),
    finding(time_ns=TIME_NS + 4 * 10**6, pool="deepseek_v4_c128"),
]


def _unknown(message: Any) -> bool:
    """Return whether Perfetto's own definitions lack a field of the message."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.SerializeToString() != message.SerializeToString())


def _spell(event: Any, said: dict[str, dict[int, str]]) -> None:
    """Replace numbers of names by the names that were written before."""
    if event.name_iid:
        event.name = said["event_names"][event.name_iid]
    for note in event.debug_annotations:
        note.name = said["debug_annotation_names"][note.name_iid]


class Read:
    """A trace, parsed with Perfetto's messages and by its rules."""

    def __init__(self, path: Path) -> None:
        trace = pb2.Trace()
        trace.ParseFromString(path.read_bytes())
        self.names: dict[int, str] = {}
        above: dict[int, int] = {}
        events = []
        said: dict[str, dict[int, str]] = {"event_names": {}, "debug_annotation_names": {}}
        assert trace.packet[0].sequence_flags == pb2.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for packet in trace.packet:
            assert not _unknown(packet)
            assert packet.trusted_packet_sequence_id == 1
            for kind, names in said.items():
                entries = getattr(packet.interned_data, kind)
                assert all(entry.iid and entry.iid not in names for entry in entries)
                names |= {entry.iid: entry.name for entry in entries}
            if packet.HasField("track_event"):
                assert packet.sequence_flags == pb2.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
                assert packet.track_event.track_uuid in self.names, "described before it is used"
                _spell(packet.track_event, said)
                events.append((packet.timestamp, packet.track_event))
            elif packet.HasField("track_descriptor"):
                self.names[packet.track_descriptor.uuid] = packet.track_descriptor.name
                above[packet.track_descriptor.uuid] = packet.track_descriptor.parent_uuid
        self.paths = {uuid: self._path(uuid, above) for uuid in self.names}
        # Perfetto sorts by time and keeps the file's order where times are equal.
        self.events = sorted(events, key=lambda event: event[0])

    def _path(self, uuid: int, above: dict[int, int]) -> tuple[str, ...]:
        head = self._path(above[uuid], above) if above[uuid] else ()
        return (*head, self.names[uuid])

    def of(self, kind: str) -> list[tuple[int, Any]]:
        """Return the events of one type, with their times."""
        number = getattr(pb2.TrackEvent, f"TYPE_{kind}")
        return [(time, event) for time, event in self.events if event.type == number]

    def deepest(self) -> int:
        """Return the deepest nesting of slices on one track; every end must have its begin."""
        open_now: dict[int, int] = defaultdict(int)
        deepest = 0
        for _, event in self.events:
            if event.type == pb2.TrackEvent.TYPE_SLICE_BEGIN:
                open_now[event.track_uuid] += 1
            elif event.type == pb2.TrackEvent.TYPE_SLICE_END:
                open_now[event.track_uuid] -= 1
                assert open_now[event.track_uuid] >= 0, "an end before its begin"
            deepest = max(deepest, open_now[event.track_uuid])
        assert not any(open_now.values()), "a slice that never ends"
        return deepest


@settings(max_examples=50, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12),
)
def test_slices_that_overlap_lie_in_lanes(
    spans: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No slice of a track contains another, and none is lost."""
    path = tmp_path_factory.mktemp("trace") / "t.pftrace"
    kind = Kind(("rank 0", "mla", "load"), "load")
    slices = [Slice(kind, *span) for span in sorted(spans)]
    assert write_perfetto(path, slices, []) == len(spans)
    trace = Read(path)
    assert trace.deepest() <= 1
    begun = Counter(time for time, _ in trace.of("SLICE_BEGIN"))
    assert begun == Counter(start for start, _ in spans)


def test_a_time_before_the_epoch_spoils_no_other(tmp_path: Path) -> None:
    """An operation that took longer than its clock had run begins at 0: times have no sign."""
    kind = Kind(("rank 0", "mla", "load"), "load")
    write_perfetto(tmp_path / "t", [Slice(kind, -5, 10), Slice(kind, 7, 2)], [])
    trace = Read(tmp_path / "t")
    assert [time for time, _ in trace.of("SLICE_BEGIN")] == [0, 7]
    assert [time for time, _ in trace.of("SLICE_END")] == [5, 9]


@settings(max_examples=50, deadline=None)
@given(
    start=st.integers(0, 2**63 - 1000),
    took=st.integers(-5, 900),
    number=st.integers(-(2**63), 2**63 - 1),
    flag=st.booleans(),
    text=st.text(max_size=300),
    flows=st.lists(st.integers(1, 2**64 - 1), max_size=3),
)
def test_what_is_written_is_what_perfetto_reads(  # noqa: PLR0917
    start: int,
    took: int,
    number: int,
    flag: bool,
    text: str,
    flows: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Times, numbers, flags, texts and flows of any size come out as they went in."""
    path = tmp_path_factory.mktemp("trace") / "t.pftrace"
    details: dict[str, Value] = {"number": number, "flag": flag, "text": text}
    kind = Kind(("rank 0", text), text, details)
    instant = Instant(("rank 0", text, "findings"), text, start, details)
    one = Slice(kind, start, took, number, flows, flows[:1])
    assert write_perfetto(path, [one], [instant]) == 2
    trace = Read(path)
    ((begun, event),) = trace.of("SLICE_BEGIN")
    ((at, marked),) = trace.of("INSTANT")
    assert (begun, at) == (start, start)
    assert [time for time, _ in trace.of("SLICE_END")] == [start + max(1, took)]
    assert (list(event.flow_ids), list(event.terminating_flow_ids)) == (flows, flows[:1])
    assert trace.paths[event.track_uuid] == ("rank 0", text)
    for told, more in ((event, [number]), (marked, [])):
        assert told.name == text
        notes = {note.name: note for note in told.debug_annotations}
        assert (notes["number"].int_value, notes["text"].string_value) == (number, text)
        assert (notes["flag"].HasField("bool_value"), notes["flag"].bool_value) == (True, flag)
        assert [note.int_value for name, note in notes.items() if name == "op_id"] == more


def test_many_kinds_of_slices_are_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose copies are all different needs no more memory, and its slices are whole."""
    for place in ("exporters.perfetto", "tracer.diagnose.timeline"):
        monkeypatch.setattr(f"hicache_dbg.{place}._MOST_KINDS", 3)
    copies = [copied(op_id=n, pages=n, time_ns=TIME_NS + n) for n in (*range(1, 20), 1)]
    main(["diagnose", str(recorded(tmp_path, "run", copies)), "--perfetto", str(tmp_path / "t")])
    begun = Read(tmp_path / "t").of("SLICE_BEGIN")
    assert Counter(event.name for _, event in begun)["backup of 1 page"] == 2
    assert len(begun) == 20


def test_a_page_flows_from_what_wrote_it_to_what_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A load is linked to the last backup of each of its pages, within the same generation only."""
    path = tmp_path / "run.pftrace"
    place = recorded(tmp_path, "run", RUN)
    assert main(["diagnose", str(place), "--perfetto", str(path)]) == 1
    assert "5 slices and instants" in capsys.readouterr().err
    trace = Read(path)
    leaving: dict[int, int] = {}
    arriving: dict[int, int] = {}
    for _, event in trace.of("SLICE_BEGIN"):
        details = {note.name: note for note in event.debug_annotations}
        op = details["op_id"].int_value
        leaving |= dict.fromkeys(event.flow_ids, op)
        arriving |= dict.fromkeys(event.terminating_flow_ids, op)
        assert trace.paths[event.track_uuid][:2] == ("rank 0", "deepseek_v4_c128")
        assert details["token_granular"].bool_value is False
    assert set(leaving) == set(arriving)
    assert {(leaving[flow], arriving[flow]) for flow in leaving} == {(1, 3), (2, 3)}
    ((time, instant),) = trace.of("INSTANT")
    assert (time, instant.name) == (TIME_NS + 4 * 10**6, "row_width")
    assert trace.paths[instant.track_uuid] == ("rank 0", "deepseek_v4_c128", "findings")


def test_operations_of_two_runs_are_told_apart(tmp_path: Path) -> None:
    """A later process numbers its operations from 1 again: each flow still has one end on each side."""
    for name, after in (("a", 0), ("b", 10**9)):
        shifted = [replace(event, time_ns=event.time_ns + after) for event in RUN]
        recorded(tmp_path, name, shifted)
    assert main(["diagnose", str(tmp_path), "--perfetto", str(tmp_path / "trace")]) == 1
    begun = [event for _, event in Read(tmp_path / "trace").of("SLICE_BEGIN")]
    for field in ("flow_ids", "terminating_flow_ids"):
        ids = Counter(flow for event in begun for flow in getattr(event, field))
        assert len(ids) == 4
        assert set(ids.values()) == {1}


def test_a_recording_that_lacks_optional_fields_has_a_timeline(tmp_path: Path) -> None:
    """What an older version did not write is left out of a slice's details."""
    place = recorded(tmp_path, "run", RUN)
    (file,) = [place] if place.is_file() else recordings_in(place)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[1:]:
        for name in ("status", "op_id", "host_pages", "skipped"):
            line.pop(name, None)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["diagnose", str(place), "--perfetto", str(tmp_path / "trace")]) == 1
    begun = Read(tmp_path / "trace").of("SLICE_BEGIN")
    assert len(begun) == 4
    assert not {"status", "op_id"} & {n.name for _, e in begun for n in e.debug_annotations}


def test_a_timeline_is_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs side by side have no common timeline."""
    place = str(recorded(tmp_path, "run", [copied()]))
    assert main(["diagnose", place, place, "--perfetto", str(tmp_path / "x")]) == 2
    assert "--perfetto are of one run" in capsys.readouterr().err


def test_a_folder_that_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the file and the reason."""
    place = str(recorded(tmp_path, "run", [copied()]))
    missing = tmp_path / "none" / "run.pftrace"
    assert main(["diagnose", place, "--perfetto", str(missing)]) == 2
    assert f"cannot write {missing}" in capsys.readouterr().err


def test_a_long_timeline_shows_how_far_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute without a word looks like a hang."""
    told: list[tuple[int, int, str]] = []

    @contextmanager
    def progress() -> Iterator[Advance]:
        yield lambda *step: told.append(step)

    monkeypatch.setattr("hicache_dbg.tracer.cli.diagnose.progress", progress)
    place = str(recorded(tmp_path, "run", [copied()] * 1500))
    main(["diagnose", place, "--perfetto", str(tmp_path / "run.pftrace")])
    assert told == [(0, 1500, "timeline"), (1000, 1500, "timeline")]


def test_a_timeline_is_cut_around_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only copies and findings of 5 s before and after the first such finding are drawn."""
    seconds = 10**9
    after = [replace(event, time_ns=event.time_ns + 60 * seconds) for event in RUN]
    place = str(recorded(tmp_path, "run", [*RUN, *after]))
    cut = str(tmp_path / "cut")
    for cls in ("row_width", "any"):
        assert main(["diagnose", place, "--perfetto", cut, "--around", cls]) == 1
        assert "5 slices and instants of 10, those around" in capsys.readouterr().err
    trace = Read(Path(cut))
    assert len(trace.of("SLICE_BEGIN")) == 4
    assert len(trace.of("INSTANT")) == 1
    assert main(["diagnose", place, "--perfetto", cut, "--around", "slot_reuse"]) == 2
    assert "no such finding in this run; it has row_width" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--around", "any"], "add --perfetto"),
        (["--around", "nothing", "--perfetto", "x"], "is no class: expected any, row_width, "),
    ],
)
def test_a_cut_without_a_timeline_or_a_class_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is missing."""
    assert main(["diagnose", str(recorded(tmp_path, "run", RUN)), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_too_large_for_a_browser_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what else reads it, and how to make it smaller."""
    monkeypatch.setattr("hicache_dbg.tracer.cli.diagnose.BROWSER_BYTES", 100)
    place = str(recorded(tmp_path, "run", RUN))
    main(["diagnose", place, "--perfetto", str(tmp_path / "trace")])
    assert "trace_processor --httpd" in capsys.readouterr().err
