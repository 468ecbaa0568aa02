"""A round trip of every host pool class and layout of this version of SGLang."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import pytest
from released_base import LAYERS, Case, bytes_of
from released_cases import CASES
from released_driving import backup, indices, load
from released_traced import Start

from hicache_dbg.tracer.events import Copied, Finding, Op, Started

HOST, FROM, TO = [5, 0, 7], [1, 4, 2], [0, 3, 5]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_clean_round_trip_is_verified_tile_by_tile(traced: Start, case: Case) -> None:
    """The bytes come back, each tile is verified at both ends, one event an operation, no finding."""
    run = traced()
    setup = case.build(case.layout)
    before = [bytes_of(tensor, setup.rows).clone() for tensor in setup.devices]
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), case.io_backend)
    load(setup, host, indices(TO, setup.page), case.io_backend)
    for tensor, old in zip(setup.devices, before, strict=True):
        now = bytes_of(tensor, setup.rows)
        assert now[TO].equal(old[FROM])
        assert now[[1, 4, 2, 6]].equal(old[[1, 4, 2, 6]])  # and nothing else moved
    assert run.sink.of(Finding) == []
    copies = run.sink.of(Copied)
    tiles = len(HOST) * LAYERS * case.components
    assert [(event.op, event.verified, event.tiles) for event in copies] == [
        (Op.BACKUP, tiles, tiles),
        (Op.LOAD, tiles, tiles),
    ]
    moved = sum(len(HOST) * bytes_of(tensor, setup.rows).shape[1] for tensor in setup.devices)
    assert [event.bytes for event in copies] == [moved, moved]
    assert {(event.layout, event.token_granular, event.pages) for event in copies} == {
        (case.layout, False, len(HOST))
    }
    (started,) = run.sink.of(Started)
    assert started.unrecognised == ()
    assert started.classes_built == (type(setup.pool).__name__,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_flipped_byte_on_the_host_is_found(traced: Start, case: Case) -> None:
    """One changed byte of one host tile, between backup and load, is one mismatched tile: its own."""
    run = traced()
    setup = case.build(case.layout)
    host = indices(HOST, setup.page)
    backup(setup, host, indices(FROM, setup.page), case.io_backend)
    view = next(iter(run.record(setup.pool).mirror.host.values()))
    flip(view.address(1, HOST[2]) + view.segments()[-1][0])
    load(setup, host, indices(TO, setup.page), case.io_backend)
    event = run.sink.of(Copied)[-1]
    assert (event.mismatched, event.verified) == (1, event.tiles - 1)
    (finding,) = run.sink.of(Finding)
    assert (finding.layer, finding.pages) == (1, (HOST[2],))


def flip(address: int) -> None:
    """Invert the byte at ``address``."""
    import ctypes

    byte = ctypes.c_uint8.from_address(address)
    byte.value ^= 0xFF
