"""A pool whose geometry cannot be read: its copies are told, with their numbers and no page of theirs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hicache_dbg.tracer.attach.sglang.copies import Given, Reading, layer_of, read_call
from hicache_dbg.tracer.attach.sglang.kinds import KINDS, Kind
from hicache_dbg.tracer.attach.sglang.pool_mirrors import mirror_views
from hicache_dbg.tracer.attach.sglang.registry import Allocations, PoolRecord
from hicache_dbg.tracer.events import Op

PAGE, PAGES, LAYERS = 4, 10, 3
KNOWN = next(iter(KINDS.values()))
METHOD = next(iter(KNOWN.rules))


def unread(kind: Kind | None) -> tuple[Any, PoolRecord]:
    """Return a pool, and what is known of it: its class perhaps, and how its pages are counted."""
    pool = SimpleNamespace(
        layer_num=LAYERS,
        page_num=PAGES,
        page_size=PAGE,
        layout="page_first",
        dtype=torch.bfloat16,
    )
    record = PoolRecord(mirror_views(pool, "pool", None), kind, None, [Allocations(PAGE, PAGES)])
    return pool, record


def read(kind: Kind | None, host: int, device: int) -> Reading:
    """Return a backup of so many indices of either end as a copy."""
    pool, record = unread(kind)
    indices = torch.arange(host), torch.arange(device)
    return read_call(record, Given(pool, METHOD, *indices, "kernel", Op.BACKUP), 7)


@pytest.mark.parametrize("kind", [None, KNOWN], ids=["unknown class", "class that cannot be read"])
@pytest.mark.parametrize(("indices", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_copy_of_a_pool_that_cannot_be_read_has_as_many_unknown_pages(
    kind: Kind | None, indices: int, pages: int
) -> None:
    """Of a dummy rank or of another version's class too: no rule is asked without a geometry."""
    reading = read(kind, indices, indices)
    copy = reading.copy
    assert copy.host_pages.tolist() == copy.device_pages.tolist() == [-1] * pages
    assert copy.fits == (pages == 0)
    assert (copy.h, copy.d, reading.tokens) == (indices, indices, indices)
    assert (copy.token_granular, copy.spans) == (False, None)
    assert copy.layers == tuple(range(LAYERS))
    assert copy.generations.tolist() == [0] * pages
    assert reading.use is not None
    assert (reading.use.slot_page, reading.use.host_limit) == (PAGE, PAGE * PAGES)


@pytest.mark.parametrize("kind", [None, KNOWN])
def test_ends_of_different_length_move_nothing_that_is_known(kind: Kind | None) -> None:
    """The pool refuses such a call, or it is a fault: both indices go to the check of their use."""
    reading = read(kind, 4, 8)
    assert reading.copy.host_pages.size == reading.copy.device_pages.size == 0
    assert (reading.copy.h, reading.copy.d) == (4, 8)
    assert reading.use is not None
    assert reading.use.host.tolist() == list(range(4))
    assert reading.use.device.tolist() == list(range(8))


def test_a_layer_of_an_unread_pool_is_the_number_that_it_is_given() -> None:
    """Up to the last layer that the pool names; a later one is another pool's."""
    pool, record = unread(None)
    layers = [layer_of(pool, record, {"layer_id": number}) for number in (0, np.int64(2), 3)]
    assert layers == [0, 2, None]
