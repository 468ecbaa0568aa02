"""The same handover on GPUs: between two if there are two, else within one."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.handover.pair import WAIT_S, arrived, pair, tokens_of
from tests.handover.watched import ON, by_role, traced

from hicache_dbg.pools.handover.errors import Refused
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def devices() -> tuple[str, str]:
    """The devices of prefill's and decode's pools."""
    return "cuda:0", f"cuda:{torch.cuda.device_count() - 1}"


def test_every_tile_arrives_and_both_ends_digest_the_same(devices: tuple[str, str]) -> None:
    """Requests of one to four pages in unrelated slots: all tiles are witnessed, and a join finds nothing."""
    counts = ([3, 1, 7], [0], [9, 8, 2, 5])
    with traced(ON) as (sink, told), pair(by_hand=False, pump=True, devices=devices) as made:
        for name, source in enumerate(counts):
            tokens, pages = tokens_of(name, len(source)), np.array(source)
            made.computed(tokens, pages)
            room = made.alloc(len(source))
            receiving = made.decode.expect(f"r{name}", room, len(tokens))
            sending = made.prefill.send(f"r{name}", pages, len(tokens))
            made.decode.wait(receiving, WAIT_S)
            made.prefill.wait(sending, WAIT_S)
            assert arrived(made.theirs, tokens, room)
        told.flush()
    copies = sink.of(Copied)
    assert len(copies) == 4 * len(counts)
    assert all(copy.tiles == copy.witnessed for copy in copies)
    assert join(by_role(sink.events)) == []


def test_tensors_that_the_allocator_put_side_by_side_stay_apart(devices: tuple[str, str]) -> None:
    """In pools of one page, the only page of a layer ends where the next layer's begins."""
    with pair(by_hand=False, pump=True, devices=devices, device_pages=1) as made:
        tokens, pages = tokens_of(1, 1), np.arange(1)
        made.computed(tokens, pages)
        room = made.alloc(1)
        receiving = made.decode.expect("r", room, len(tokens))
        sending = made.prefill.send("r", pages, len(tokens))
        made.decode.wait(receiving, WAIT_S)
        made.prefill.wait(sending, WAIT_S)
        assert arrived(made.theirs, tokens, room)


def test_a_request_that_prefill_takes_back_leaves_no_page_held(devices: tuple[str, str]) -> None:
    """Whether or not its write had begun, every page of decode is free in the end."""
    with pair(by_hand=False, pump=True, devices=devices) as made:
        tokens, pages = tokens_of(1, 8), np.arange(8)
        made.computed(tokens, pages)
        room = made.alloc(8)
        receiving = made.decode.expect("r", room, len(tokens))
        sending = made.prefill.send("r", pages, len(tokens))
        made.prefill.abort(sending, "not wanted any more")
        with suppress(Refused):
            made.decode.wait(receiving, WAIT_S)
            made.pages.free(room)
        made.prefill.close()
        made.decode.close()
        assert made.pages.available == made.pages.pages
