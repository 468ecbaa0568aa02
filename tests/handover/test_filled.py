"""Partly filled pages: how much of a request's pages is valid, and what both ends do with the rest."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.handover import pair as made_by
from tests.handover.pair import WAIT_S, HandWire, P, Pair, pair, tokens_of
from tests.handover.watched import by_role, traced
from tests.pools.caching import LAYERS, page_of

from hicache_dbg.pools.deepseek_v4 import deepseek_v4_c4_state, deepseek_v4_c128, deepseek_v4_swa
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.kinds import mla
from hicache_dbg.tracer.attach.hicache_handover_filled import filled
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied, Op

PAGE = 256
GEOMETRIES = deepseek_v4_swa(1), deepseek_v4_c128(1), mla(1, PAGE), deepseek_v4_c4_state(1)


@given(
    geometry=st.sampled_from(GEOMETRIES), pages=st.integers(1, 5), tokens=st.integers(0, 5 * PAGE)
)
def test_a_slot_counts_when_all_of_its_tokens_are_there(
    geometry: PoolGeometry, pages: int, tokens: int
) -> None:
    """Slots count by token; a ring's page counts as a whole, and may change until it is full."""
    made = filled(geometry, pages, tokens)
    for page in range(pages):
        here = sum(page * PAGE <= token < (page + 1) * PAGE for token in range(tokens))
        whole = geometry.slots_per_page if here else 0
        wanted = here // geometry.tokens_per_slot if geometry.single_slots else whole
        assert made.slots[page] == wanted
        assert made.rewritten[page] == (not geometry.single_slots and 0 < here < PAGE)
    parts = made.parts(np.ones(pages, np.bool_))
    assert sum(slots * int(which.sum()) for slots, which in parts) == made.slots.sum()


@settings(max_examples=20, deadline=None)
@given(
    left=st.integers(1, P - 1),
    slot=st.integers(0, P - 1),
    layer=st.integers(0, LAYERS - 1),
    pool=st.sampled_from(["mla", "dsa_index_k"]),
)
def test_of_a_last_page_a_filled_slot_is_compared_and_the_rest_is_not(
    left: int, slot: int, layer: int, pool: str
) -> None:
    """A byte of any slot is changed on the way; it is found only if the slot is valid."""
    with traced() as (sink, told), pair(by_hand=True) as made:
        made.decode.generation = made.pages.generation
        tokens, source, room = tokens_of(1, 2), np.array([3, 5]), made.alloc(2)
        made.computed(tokens, source)
        receiving = made.decode.expect("r", room, 2 * P - left)
        sending = made.prefill.send("r", source, 2 * P - left)
        made.settle()
        _wire(made).move_all()
        page = page_of(made.theirs, pool, layer, int(room[1]))
        row = made.theirs.device[pool].geometry.components[0].runs[0].slot_bytes
        page[slot * row] ^= 1
        made.settle()
        made.decode.wait(receiving, WAIT_S)
        made.prefill.wait(sending, WAIT_S)
        told.flush()
    assert all(copy.tiles == copy.witnessed for copy in sink.of(Copied))
    named = [(found.pool, found.layer, found.pages) for found in join(by_role(sink.events))]
    assert named == ([(pool, layer, (1,))] if slot < P - left else [])


def _wire(made: Pair) -> HandWire:
    wire = made.prefill.link.wire
    assert isinstance(wire, HandWire)
    return wire


@contextmanager
def _v4(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Return a pair over a sliding window, entries of 128 tokens, and a ring."""
    geometries = deepseek_v4_swa(1), deepseek_v4_c128(1), deepseek_v4_c4_state(1)

    def group(device_pages: int, device: str) -> PoolGroup:
        return PoolGroup.build(
            geometries,
            device_pages=device_pages,
            host_pages=1,
            layout=Layout.PAGE_FIRST,
            device=device,
        )

    monkeypatch.setattr(made_by, "group_of", group)
    with pair(by_hand=True, device_pages=4) as made:
        made.decode.generation = made.pages.generation
        for mirror in made.ours.mirrors:
            for buffer in mirror.device.buffers.values():
                for tensor in buffer.tensors:
                    tensor.view(torch.uint8).view(-1).random_()
        yield made


def test_a_ring_is_digested_before_the_request_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode's later writes to the slots are no mismatch; a pool without a full slot is left out."""
    with traced() as (sink, told), _v4(monkeypatch) as made:
        receiving = made.decode.expect("r", made.alloc(1), 60)
        made.prefill.send("r", np.array([2]), 60)
        made.settle()
        _wire(made).move_all()
        made.settle()
        made.decode.wait(receiving, WAIT_S)
        ring = made.theirs.device["deepseek_v4_c4_state"].layer("state", 0)
        ring[int(receiving.pages[0])].view(torch.uint8).view(-1)[0] ^= 1
        told.flush()
    assert join(by_role(sink.events)) == []
    received = {copy.pool: copy for copy in sink.of(Copied) if copy.op is Op.RECV}
    assert received["deepseek_v4_c128"].skipped == {"partial": 1}
    assert received["deepseek_v4_c4_state"].witnessed == received["deepseek_v4_swa"].witnessed == 1
