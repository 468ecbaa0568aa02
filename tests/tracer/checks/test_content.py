"""What the report of a mismatch says: the cause, which pages and slots, and what to do."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tracer.rig import LAYERS, PAGE, PAGES, WIDTH, Rig, view

from hicache_dbg.tracer.checks import content
from hicache_dbg.tracer.events import FaultClass, Finding
from hicache_dbg.tracer.settings import Checksum


def there_and_back(rig: Rig, *, flip: bool = False) -> Finding:
    """Move a page down and up, maybe with a bit flipped between; return the only finding."""
    rig.backup([5], [1])
    rig.session.bus.flush()
    if flip:
        rig.host[0, 5, 3] ^= 1
    rig.load([5], [3])
    (_, load), (finding,) = rig.finish()
    assert load.mismatched > 0
    return finding


def test_a_narrower_host_is_told_with_both_ends_and_the_slots_that_stay_behind() -> None:
    """Copies that end early leave the last slots of each page as they were."""
    found = there_and_back(Rig(Checksum.LOADS, host_width=WIDTH // 2))
    assert found.message.endswith(
        ": the host mirror (H) holds 8 B a slot, 32 B a page, the device 16 B a slot, 64 B a page; "
        "slots 2..3 of each page are never copied, so older bytes stay there"
    )
    assert (found.slots, found.advice) == (
        "2..3",
        "size H from the device tensor's dtype and shape",
    )


def test_a_narrower_host_with_one_item_size_moves_other_pages_bytes() -> None:
    """No slots are called left behind where every page but the first is read from elsewhere."""
    rig = Rig(Checksum.LOADS, host_width=WIDTH // 2)
    rig.mirror = replace(rig.mirror, one_item=True)
    found = there_and_back(rig)
    assert found.message.endswith(
        "64 B a page; a copy takes one item size, 32 B, for both ends, so page p moves device tokens "
        "2p..2p+1 and not 4p..4p+3 (page 1: tokens 2..3, not 4..7)"
    )
    assert found.slots == ""


@pytest.mark.parametrize("more", [0, WIDTH])
def test_a_host_page_that_is_longer_than_the_devices_is_the_cause(more: int) -> None:
    """Slots of one width in pages of another length: the copies reach past the device's page."""
    rig = Rig(Checksum.LOADS)
    rig.host = np.full((LAYERS, PAGES, PAGE + more), 0xA5, np.uint8)
    host = replace(view(rig.host, "host"), page_span=PAGE + more)
    rig.mirror = replace(rig.mirror, host={"part": host})
    found = there_and_back(rig, flip=True)
    assert found.cls is (FaultClass.ROW_WIDTH if more else FaultClass.BIT_FLIP)


def test_a_report_names_the_first_pages_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event has the first few pages and how many there are."""
    monkeypatch.setattr(content, "FEW", 2)
    rig = Rig(Checksum.LOADS)
    rig.backup([5, 6, 7], [1, 2, 3])
    rig.load([5, 6, 7], [4, 5, 6], deliver=False)
    (_, load), (found,) = rig.finish()
    assert load.mismatched == 3 * LAYERS
    assert (found.pages, found.page_count) == ((5, 6), 3)
    assert (
        "9 of 9 tiles of this load differ (layers 0..2; host pages 5..6 and 1 more; first: layer 0, "
        in found.message
    )
