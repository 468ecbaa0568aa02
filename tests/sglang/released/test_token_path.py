"""DeepSeek-V4's choice between the token and the page path by number of indices, and its cost."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from contextlib import suppress

import pytest
import torch
from released_base import DEVICE_PAGES, HOST_PAGES, VERSION, Setup, bytes_of
from released_driving import indices
from released_pages import v4
from released_traced import Start

from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op
from hicache_dbg.tracer.words import counted

C4 = v4("dsv4_hisparse_c4", 37440, 64)


def scattered(count: int, slots: int, seed: int) -> torch.Tensor:
    """Return distinct single slots in random order."""
    return torch.randperm(slots, generator=torch.Generator().manual_seed(seed))[:count]


def slot(pages: torch.Tensor, number: int) -> torch.Tensor:
    """Return the 576 value and 8 scale bytes of one C4 slot."""
    page, at = pages[number // 64], number % 64
    return torch.cat([page[at * 576 :][:576], page[64 * 576 + at * 8 :][:8]])


def call(setup: Setup, kind: Op, host: torch.Tensor, device: torch.Tensor) -> None:
    """Call the pool directly, as HiSparse does, without an engine."""
    if kind is Op.BACKUP:
        setup.pool.backup_from_device_all_layer(setup.pool_device, host, device, "kernel")
        return
    for layer in range(setup.pool.layer_num):
        setup.pool.load_to_device_per_layer(setup.pool_device, host, device, layer, "kernel")


@pytest.mark.parametrize("count", [1, 3, 63, 65])
def test_single_tokens_are_token_granular_and_clean(traced: Start, count: int) -> None:
    """A slot count that is no multiple of a page moves slot by slot: right bytes, no finding."""
    run = traced()
    setup = C4("layer_first")
    host = scattered(count, HOST_PAGES * 64, 1)
    device = scattered(count, DEVICE_PAGES * 64, 2)
    call(setup, Op.BACKUP, host, device)
    pages = setup.pool.kv_buffer[0]
    for to, at in zip(host.tolist(), device.tolist(), strict=True):
        assert slot(pages, to).equal(slot(setup.devices[0], at))
    (event,) = run.sink.of(Copied)
    assert (event.token_granular, event.h, event.d, event.slot_page) == (True, count, count, 64)
    assert event.unit == "slot"
    assert event.mismatched == 0
    assert run.sink.of(Finding) == []


def test_a_run_of_slots_is_verified(traced: Start) -> None:
    """3 consecutive slots of one page make a round trip, digested as a range and verified at both ends."""
    run = traced()
    setup = C4("layer_first")
    before = setup.devices[1].clone()
    host, device = torch.tensor([130, 131, 132]), torch.tensor([70, 71, 72])
    call(setup, Op.BACKUP, host, device)
    call(setup, Op.LOAD, host, torch.tensor([10, 11, 12]))
    assert slot(setup.devices[1], 11).equal(slot(before, 71))
    assert run.sink.of(Finding) == []
    backup, *loads = run.sink.of(Copied)
    assert (backup.verified, sum(event.verified for event in loads)) == (2, 2)
    assert backup.bytes == 3 * 584 * 2


@pytest.mark.parametrize("kind", [Op.BACKUP, Op.LOAD])
@pytest.mark.parametrize("count", [64, 128, 256])
def test_64_scattered_tokens_take_the_page_path(traced: Start, kind: Op, count: int) -> None:
    """A page's number of slots is copied as pages: wrong bytes, reported before they are used."""
    run = traced()
    setup = C4("layer_first")
    host = scattered(count, HOST_PAGES * 64, 1)
    device = scattered(count, DEVICE_PAGES * 64, 2)
    mirror = setup.pool.kv_buffer[0].random_(0, 256), setup.devices[0]
    target, source = mirror if kind is Op.BACKUP else mirror[::-1]
    to, at = (host, device) if kind is Op.BACKUP else (device, host)
    before = source.clone()
    call(setup, kind, host, device)
    pairs = zip(to.tolist(), at.tolist(), strict=True)
    right = sum(slot(target, new).equal(slot(before, old)) for new, old in pairs)
    assert right <= count // 64  # the first of each run at best
    finding = run.sink.of(Finding)[0]
    assert finding.cls is FaultClass.INDEX_SPACE
    assert finding.op == kind.value
    assert finding.expected.startswith(f"{count} single slots in ")
    assert finding.got == f"{counted(count // 64, 'whole page')} of 64"
    assert run.sink.of(Copied)[0].token_granular is False


def test_ends_of_different_length_are_told_and_move_no_tile_that_counts(traced: Start) -> None:
    """SGLang refuses the call or copies something: no pair of pages is taken for what it moved."""
    run = traced()
    setup = C4("layer_first")
    with suppress(RuntimeError, AssertionError, IndexError, ValueError):
        call(setup, Op.BACKUP, scattered(3, HOST_PAGES * 64, 1), scattered(2, DEVICE_PAGES * 64, 2))
    (event,) = run.sink.of(Copied)
    assert (event.h, event.d, event.pages, event.tiles) == (3, 2, 0, 0)
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.INDEX_SPACE
    assert (finding.expected, finding.got) == ("2 host slots", "3 host slots")


def test_whole_pages_are_no_finding(traced: Start) -> None:
    """The page path is for 64 slots of one page, and for pages in any order."""
    run = traced()
    setup = C4("layer_first")
    call(setup, Op.BACKUP, indices([3, 1], 64), indices([0, 5], 64))
    assert run.sink.of(Finding) == []
    assert bytes_of(setup.pool.kv_buffer[0], 1)[3].equal(setup.devices[0][0])


def test_unaligned_ids_of_c128_write_other_rows(traced: Start) -> None:
    """3 ids of page 2 go to rows 173, 174 and 194: the kernel assumes another pool's page."""
    run = traced()
    from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool

    device = [torch.randint(0, 256, (200, 1728), dtype=torch.uint8) for _ in range(2)]
    pool = DeepSeekV4PagedHostPool(
        *("deepseek_v4_c128", device, 1728),
        num_host_pages=200,
        slot_page_size=256,
        layout="layer_first",
        pin_memory=False,
    )
    before = pool.kv_buffer[0].clone()
    ids = torch.tensor([512, 513, 514])
    pool.backup_from_device_all_layer(None, ids, ids, "kernel")
    changed = (pool.kv_buffer[0] != before).any(dim=1).nonzero().flatten().tolist()
    assert set(changed) <= {173, 174, 194}
    assert changed
    (finding,) = run.sink.of(Finding)
    assert finding.cls is FaultClass.INDEX_SPACE
    assert (finding.expected, finding.got) == ("row 2 of 1728 B", "rows 173..174, 194")
    assert run.sink.of(Copied)[0].skipped == {"partial": 2}


@pytest.mark.skipif(VERSION != "0.5.23", reason="the method came with 0.5.23")
def test_the_method_for_tokens_copies_64_tokens_right(traced: Start) -> None:
    """0.5.23 has a token-only method: 64 scattered slots are right, in one event without a finding."""
    run = traced()
    setup = C4("layer_first")
    host = scattered(64, HOST_PAGES * 64, 1)
    device = scattered(64, DEVICE_PAGES * 64, 2)
    setup.pool.backup_tokens_from_device_all_layer(host, device)
    for to, at in zip(host.tolist(), device.tolist(), strict=True):
        assert slot(setup.pool.kv_buffer[1], to).equal(slot(setup.devices[1], at))
    (event,) = run.sink.of(Copied)
    assert event.token_granular is True
    assert run.sink.of(Finding) == []
