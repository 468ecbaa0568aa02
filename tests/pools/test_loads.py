"""Loads: what the tree did not take is nobody's once it is freed, and the next owner's then."""

from threading import Event

import numpy as np
from tests.pools.caching import LAYERS, accounted, group_of, sequences, turn, write
from tests.pools.test_controller_gates import GatedEngine

from hicache_dbg.pools.controller import HiCacheController


def test_a_page_that_was_left_over_once_is_freed_like_any_other() -> None:
    """Its next owner inserts it as a duplicate: that a load once kept it must not leak it."""
    engine = GatedEngine()
    with HiCacheController(group_of(device_pages=12), engine=engine) as controller:
        tokens, other = sequences([[1, 1, 1, 1], [2] * 12])
        for item in (tokens, other):
            turn(controller, item)
            controller.flush()
        engine.permits = {0: Event()}
        match = controller.match(tokens)
        ticket = controller.load_back(match)
        computed = controller.alloc_device(4)
        write(controller.group, tokens, computed)
        controller.insert(tokens, computed)
        engine.permits[0].set()
        controller.wait_layer(LAYERS - 1, ticket)
        controller.unlock(match)
        device = controller.allocators["device"]
        assert not device.taken(ticket.device_pages).any()

        again = controller.alloc_device(device.available)
        mine = np.isin(again, ticket.device_pages)
        assert mine.sum() == ticket.device_pages.size
        controller.free_device(again[~mine])
        write(controller.group, tokens, again[mine])
        controller.insert(tokens, again[mine])
        assert not device.taken(ticket.device_pages).any()
        controller.flush()
        accounted(controller)
