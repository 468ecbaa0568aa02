"""The pipeline's processors, and its independence of the host's structlog."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pytest
import structlog
from tests.exporters.samples import copied, finding, health

from hicache_dbg.exporters.pipeline import add_line, pipeline, selection, take_line
from hicache_dbg.tracer.events import Event, Op
from hicache_dbg.tracer.settings import Lines

SECOND = 1_000_000_000


@pytest.fixture
def host_configuration() -> Iterator[dict[str, Any]]:
    """Configure structlog in a way that would break ours."""

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise AssertionError("the host's structlog met our event")

    class Context(dict[str, Any]):
        __init__ = refuse

    class Wrapper(structlog.BoundLoggerBase):
        __init__ = refuse

    structlog.configure(processors=[refuse], context_class=Context, wrapper_class=Wrapper)
    yield structlog.get_config()
    structlog.reset_defaults()


def lines_of(mode: Lines, events: Sequence[Event]) -> list[str]:
    """Return what a pipeline in ``mode`` prints for ``events``."""
    render = pipeline(*selection(mode), add_line, take_line)
    return [text for text in map(render, events) if text is not None]


def test_the_hosts_configuration_neither_acts_on_us_nor_changes(
    host_configuration: dict[str, Any],
) -> None:
    """A host's structlog.configure does not touch our lines, nor do we touch it."""
    before = dict(host_configuration)
    assert lines_of(Lines.ALL, [copied()])[0].startswith("[HICACHE_DBG] pool=")
    assert structlog.get_config() == before


def test_all_means_a_line_an_event() -> None:
    """In mode all, equal copies are printed each time."""
    assert len(lines_of(Lines.ALL, [copied(), copied(), finding()])) == 3


def test_paths_means_a_line_the_first_time_a_path_is_taken() -> None:
    """In mode paths, a copy is printed once per pool, op, branch and layout, whatever its size."""
    events = [
        copied(),
        copied(h=1024, d=1024, pages=4),
        copied(token_granular=True),
        copied(op=Op.LOAD),
        copied(layout="layer_first"),
        copied(pool="index_k"),
        copied(pool="index_k", rank=0, bytes=1),
    ]
    assert len(lines_of(Lines.PATHS, events)) == 5


def test_paths_prints_every_finding() -> None:
    """In mode paths no finding is held back."""
    assert len(lines_of(Lines.PATHS, [finding(), finding(), finding()])) == 3


def test_paths_prints_a_summary_a_minute_and_rank() -> None:
    """In mode paths, health is printed once a minute per rank, and always when a run closes."""
    start = health().time_ns
    beats = [
        health(),
        health(time_ns=start + 10 * SECOND),
        health(time_ns=start + 10 * SECOND, rank=1),
        health(time_ns=start + 60 * SECOND - 1000),
        health(time_ns=start + 61 * SECOND),
        health(time_ns=start + 62 * SECOND, closing=True),
    ]
    assert len(lines_of(Lines.PATHS, beats)) == 4


def test_a_clock_that_is_set_back_silences_no_summary() -> None:
    """After the clock is set back an hour, the next summary is printed, and the one a minute later."""
    later = health().time_ns + 3600 * SECOND
    beats = [health(time_ns=later + after * SECOND) for after in (0, -3600, -3590, -3540)]
    assert len(lines_of(Lines.PATHS, beats)) == 3
