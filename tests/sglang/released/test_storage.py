"""Pages to SGLang's own file backend and back: what is read must equal what was written."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import ctypes
import hashlib
import inspect
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from released_base import LAYERS, Setup, bytes_of
from released_driving import backup, controller, indices, load
from released_pages import index_k
from released_rows import mha_of_sglang
from released_traced import Start, Traced
from released_trees import SmallTree, request

from hicache_dbg.tracer.events import Copied, FaultClass, Finding, Op, Tier
from hicache_dbg.tracer.settings import Checksum

HOST, BACK = [5, 0, 7], [9, 2, 12]
TOKENS = list(range(100, 112))


def config() -> Any:
    """Return the configuration of one rank of one model."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        *(0, 1, 0, 1, 0, 1),
        is_mla_model=True,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="m",
    )


@dataclass
class Tier3:
    """A controller over the real file backend."""

    run: Traced
    setup: Setup
    owner: Any
    folder: Path

    def store(self, pages: list[int], keys: list[str], tokens: list[int] = TOKENS) -> None:
        """Store as the backup thread does."""
        from sglang.srt.managers.cache_controller import StorageOperation

        operation = StorageOperation(indices(pages, self.setup.page), tokens, hash_value=list(keys))
        self.owner._page_backup(operation)
        assert operation.completed_tokens == len(keys) * self.setup.page

    def fetch(self, pages: list[int], keys: list[str], tokens: list[int] = TOKENS) -> int:
        """Fetch as the prefetch thread does; return how many pages came."""
        from sglang.srt.managers.cache_controller import PrefetchOperation

        host = indices(pages, self.setup.page)
        early = "host_indices" in inspect.signature(PrefetchOperation).parameters
        operation = PrefetchOperation(*(("r1", host, tokens) if early else ("r1", tokens)))
        operation.hash_value = list(keys)
        hits = self.owner.page_get_func(operation, keys, host)
        return int(operation.completed_tokens // self.setup.page if hits is None else hits)

    def file(self, key: str) -> Path:
        """Return the file of a page."""
        (found,) = self.folder.glob(f"{key}*.bin")
        return found


@pytest.fixture
def tier(traced: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier3:
    """Three backed-up pages over SGLang's own pools."""
    return tier_of(traced(), mha_of_sglang("page_first"), tmp_path, monkeypatch)


def tier_of(run: Traced, setup: Setup, folder: Path, patch: pytest.MonkeyPatch) -> Tier3:
    """Return the controller of a pool, in the state that ``attach_storage_backend`` leaves."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    patch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(folder))
    backup(setup, indices(HOST, setup.page), indices([1, 4, 2], setup.page), "kernel")
    owner = controller(setup, "kernel")
    owner.storage_backend = HiCacheFile(config())
    return Tier3(run, setup, owner, folder)


def keys_of(count: int = 3, seed: str = "") -> list[str]:
    """Return keys in SGLang's form: hex of a hash."""
    return [hashlib.sha256(f"{seed}{number}".encode()).hexdigest() for number in range(count)]


def test_what_was_stored_is_fetched_and_verified(tier: Tier3) -> None:
    """To a file, back to other pages and to the device: every tile is verified at every step."""
    tier.store(HOST, keys_of())
    assert tier.fetch(BACK, keys_of()) == 3
    setup = tier.setup
    before = bytes_of(setup.devices[0], setup.rows)[[1, 4, 2]].clone()
    load(setup, indices(BACK, setup.page), indices([0, 3, 5], setup.page), "kernel")
    assert bytes_of(setup.devices[0], setup.rows)[[0, 3, 5]].equal(before)
    _, store, fetch, loaded = tier.run.sink.of(Copied)
    tiles = 3 * LAYERS * 2
    assert [(e.op, e.src, e.dst) for e in (store, fetch)] == [
        (Op.STORE, Tier.HOST, Tier.STORAGE),
        (Op.FETCH, Tier.STORAGE, Tier.HOST),
    ]
    assert [e.verified for e in (store, fetch, loaded)] == [tiles] * 3
    assert [e.tiles for e in (store, fetch, loaded)] == [tiles] * 3
    assert [(e.io_backend, e.pages, e.d, e.h) for e in (store, fetch)] == [
        ("HiCacheFile", 3, 3, 12)
    ] * 2
    assert store.bytes == fetch.bytes == loaded.bytes
    assert [e.requests for e in (store, fetch)] == [(), ("r1",)]  # a prefetch is a request's
    assert tier.run.sink.of(Finding) == []


def test_pages_that_go_on_to_storage_are_for_who_filled_them(tier: Tier3) -> None:
    """The backup was for a request, and so is the storage write that follows from the tree."""
    queue: list[Any] = []
    tier.owner.backup_queue = SimpleNamespace(put=queue.append)
    tree = SmallTree(tier.owner, tier.setup.page)
    host = tree.cache_unfinished_req(request("a"), indices([1], tier.setup.page), 5)
    tree.write_backup_storage(5, host, TOKENS[: tier.setup.page], keys_of(1))
    tier.owner._page_backup(queue.pop())
    store = tier.run.sink.of(Copied)[-1]
    assert (store.op, store.requests) == (Op.STORE, ("a",))


def test_pages_that_another_process_stored_are_unwitnessed(tier: Tier3) -> None:
    """The content under the key is unknown: it is not compared, but the later load is, with what came."""
    tier.owner._generic_page_set.__wrapped__(tier.owner, keys_of(), indices(HOST, tier.setup.page))
    assert tier.fetch(BACK, keys_of()) == 3
    tiles = 3 * LAYERS * 2
    load(tier.setup, indices(BACK, tier.setup.page), indices([0, 3, 5], tier.setup.page), "kernel")
    _, fetch, loaded = tier.run.sink.of(Copied)
    assert (fetch.op, fetch.skipped, fetch.verified) == (Op.FETCH, {"unwitnessed": tiles}, 0)
    assert loaded.verified == tiles
    assert tier.run.sink.of(Finding) == []


def only(tier: Tier3) -> Finding:
    """Return the single finding."""
    found: list[Finding] = tier.run.sink.of(Finding)
    (finding,) = found
    return finding


def test_a_changed_file_is_storage_damage(tier: Tier3) -> None:
    """SGLang reads a file with a changed byte silently; the page is named before it is loaded."""
    tier.store(HOST, keys_of())
    file = tier.file(keys_of()[1])
    content = bytearray(file.read_bytes())
    content[7] ^= 0xFF
    file.write_bytes(content)
    assert tier.fetch(BACK, keys_of()) == 3
    finding = only(tier)
    assert finding.cls is FaultClass.STORAGE_DAMAGE
    assert (finding.pool, finding.op, finding.pages) == ("kv", "fetch", (BACK[1],))
    assert "the store did not notice" in finding.message
    event = tier.run.sink.of(Copied)[-1]
    assert (event.mismatched, event.verified) == (1, 3 * LAYERS * 2 - 1)


def test_files_that_changed_places_name_the_other_key(tier: Tier3) -> None:
    """Another page's bytes under this key are damage, and the finding says whose they are."""
    tier.store(HOST, keys_of())
    first, second = (tier.file(key) for key in keys_of()[:2])
    first.write_bytes(second.read_bytes())
    tier.fetch(BACK[:1], keys_of()[:1], TOKENS[:4])
    finding = only(tier)
    assert finding.cls is FaultClass.STORAGE_DAMAGE
    assert f"they are those of key {keys_of()[1]}" in finding.message


def test_a_truncated_file_is_storage_damage(tier: Tier3) -> None:
    """The backend's own exception is passed on, and the finding names the page."""
    tier.store(HOST, keys_of())
    file = tier.file(keys_of()[0])
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OSError, match="Short read"):
        tier.fetch(BACK, keys_of())
    finding = only(tier)
    assert (finding.cls, finding.pages) == (FaultClass.STORAGE_DAMAGE, (BACK[0],))
    assert "the record is truncated" in finding.message
    assert tier.run.sink.of(Copied)[-1].status.startswith("OSError: Short read")


def test_a_page_that_is_gone_is_a_stale_index(tier: Tier3) -> None:
    """A listed page is missing: the first one is named; the ones after it were not requested."""
    tier.store(HOST, keys_of())
    tier.file(keys_of()[1]).unlink()
    assert tier.fetch(BACK, keys_of()) == 1
    finding = only(tier)
    assert (finding.cls, finding.pages) == (FaultClass.STALE_INDEX, (BACK[1],))
    assert tier.run.sink.of(Copied)[-1].skipped == {"failed": 2 * LAYERS * 2}


def test_a_key_that_was_never_stored_here_is_no_finding(tier: Tier3) -> None:
    """A miss is a miss."""
    assert tier.fetch(BACK[:1], keys_of(1, "elsewhere"), TOKENS[:4]) == 0
    assert tier.run.sink.of(Finding) == []


def test_one_key_for_two_contents_is_key_identity(tier: Tier3) -> None:
    """Another prompt's tokens under a used key: SGLang skips the write and serves the first content."""
    key = keys_of(1)
    tier.store(HOST[:1], key, TOKENS[:4])
    tier.store(HOST[1:2], key, TOKENS[4:8])
    assert only(tier).cls is FaultClass.KEY_IDENTITY
    assert only(tier).op == "store"
    tier.fetch(BACK[:1], key, TOKENS[4:8])
    classes = [(f.cls, f.op) for f in tier.run.sink.of(Finding)]
    assert classes == [(FaultClass.KEY_IDENTITY, "store"), (FaultClass.KEY_IDENTITY, "fetch")]


def test_the_same_tokens_computed_again_are_no_finding(tier: Tier3) -> None:
    """The same tokens with other low bits: the first bytes stay on disk, and are expected."""
    key, setup = keys_of(1), tier.setup
    tier.store(HOST[:1], key, TOKENS[:4])
    setup.devices[0][setup.page * 3] += 1
    backup(setup, indices([10], setup.page), indices([3], setup.page), "kernel")
    tier.store([10], key, TOKENS[:4])
    tier.fetch(BACK[:1], key, TOKENS[:4])
    assert tier.run.sink.of(Finding) == []
    assert tier.run.sink.of(Copied)[-1].verified == LAYERS * 2


@pytest.mark.parametrize("how", ["lost", "off"])
def test_what_was_stored_again_unseen_is_no_damage(
    tier: Tier3, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A page is evicted from the store and stored anew with other low bits, whose record we lack."""
    key, setup = keys_of(1), tier.setup
    session = tier.run.attachment.observer.session()
    assert session is not None
    tier.store(HOST[:1], key, TOKENS[:4])
    tier.file(key[0]).unlink()
    setup.devices[0][setup.page * 3] += 1
    backup(setup, indices([10], setup.page), indices([3], setup.page), "kernel")
    if how == "lost":
        assert session.bus.settle(10)
        monkeypatch.setattr(session.bus, "_capacity", 0)
    else:
        session.switch(on=False)
    tier.store([10], key, TOKENS[:4])
    if how == "lost":
        monkeypatch.undo()
    else:
        session.switch(on=True)
    tier.fetch(BACK[:1], key, TOKENS[:4])
    assert tier.run.sink.of(Finding) == []
    assert tier.run.sink.of(Copied)[-1].skipped == {"unwitnessed": LAYERS * 2}


def test_a_finding_needs_no_room_of_its_own(tier: Tier3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that was recorded is judged to its end: its findings are not lost in a full ring."""
    tier.store(HOST, keys_of())
    tier.file(keys_of()[1]).unlink()
    session = tier.run.attachment.observer.session()
    assert session is not None
    assert session.bus.settle(10)
    gate = threading.Event()
    monkeypatch.setattr(session.bus, "_is_ready", lambda _: gate.is_set())
    monkeypatch.setattr(session.bus, "_capacity", 1)
    tier.fetch(BACK, keys_of())
    gate.set()
    assert only(tier).cls is FaultClass.STALE_INDEX


def test_a_get_that_delivers_nothing_is_a_failed_load(
    tier: Tier3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The get reports success while the host page keeps its old bytes."""
    tier.store(HOST, keys_of())
    monkeypatch.setattr(type(tier.setup.pool), "set_from_flat_data_page", lambda *_: None)
    assert tier.fetch(BACK, keys_of()) == 3
    finding = only(tier)
    assert (finding.cls, finding.page_count) == (FaultClass.FAILED_LOAD, 3)


def test_a_host_page_that_changed_is_said_before_it_is_stored(tier: Tier3) -> None:
    """The bytes to be stored are not those that were backed up."""
    page = tier.setup.page
    tier.setup.pool.kv_buffer[0][HOST[2] * page].view(torch.uint8)[0] ^= 0xFF
    tier.store(HOST, keys_of())
    finding = only(tier)
    assert (finding.cls, finding.op, finding.pages) == (FaultClass.BIT_FLIP, "store", (HOST[2],))


def test_digests_off_says_so(
    traced: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With checksums off the transfers are recorded and nothing is compared."""
    run = traced(checksum=Checksum.OFF)
    tier = tier_of(run, mha_of_sglang("page_first"), tmp_path, monkeypatch)
    tier.store(HOST, keys_of())
    tier.fetch(BACK, keys_of())
    assert [e.skipped for e in run.sink.of(Copied)[1:]] == [{"off": 3 * LAYERS * 2}] * 2


class ByAddress:
    """A zero-copy store: it gets addresses of host memory, and copies from and to them."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._pages: dict[str, list[bytes]] = {}

    def _pieces(self, keys: list[str], host: torch.Tensor) -> list[list[tuple[int, int]]]:
        addresses, sizes = self._pool.get_page_buffer_meta(host)
        pieces = list(zip(addresses, sizes, strict=True))
        each = len(pieces) // len(keys)
        return [pieces[at * each : (at + 1) * each] for at in range(len(keys))]

    def batch_set_v1(self, keys: list[str], host: torch.Tensor, _: Any) -> list[bool]:
        """Store the bytes."""
        for key, pieces in zip(keys, self._pieces(keys, host), strict=True):
            self._pages[key] = [ctypes.string_at(address, size) for address, size in pieces]
        return [True] * len(keys)

    def batch_get_v1(self, keys: list[str], host: torch.Tensor, _: Any) -> list[bool]:
        """Return the bytes to memory."""
        for key, pieces in zip(keys, self._pieces(keys, host), strict=True):
            for (address, size), kept in zip(pieces, self._pages[key], strict=True):
                ctypes.memmove(address, kept, size)
        return [True] * len(keys)

    def swap(self, one: str, other: str) -> None:
        """Exchange two pages."""
        self._pages[one], self._pages[other] = self._pages[other], self._pages[one]


def test_zero_copy_backends_are_followed_as_well(tier: Tier3) -> None:
    """Their methods are traced: pages are verified, and one under another key is named."""
    store, owner = ByAddress(tier.setup.pool), tier.owner
    owner.storage_backend = store
    owner.page_set_func, owner.page_get_func = owner._page_set_zero_copy, owner._page_get_zero_copy
    tier.store(HOST, keys_of())
    assert tier.fetch(BACK, keys_of()) == 3
    assert [e.verified for e in tier.run.sink.of(Copied)[1:]] == [3 * LAYERS * 2] * 2
    store.swap(*keys_of()[:2])
    tier.fetch(BACK, keys_of())
    finding = only(tier)
    assert (finding.cls, finding.page_count) == (FaultClass.STORAGE_DAMAGE, 2)


def test_side_pools_cross_with_the_backend_itself(
    traced: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``batch_set_v2`` and ``batch_get_v2`` move index-K under the same keys; its damage is its own."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolName, PoolTransfer

    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path))
    run, setup = traced(), index_k("page_first")
    backup(setup, indices(HOST, 64), indices([1, 4, 2], 64), "kernel")
    backend = HiCacheFile(config())
    backend.register_mem_host_pool_v2(setup.pool, PoolName.INDEXER)
    sides = [
        PoolTransfer(name=PoolName.INDEXER, host_indices=indices(pages, 64), keys=keys_of())
        for pages in (HOST, BACK)
    ]
    assert backend.batch_set_v2(sides[:1]) == {PoolName.INDEXER: [True] * 3}
    assert backend.batch_get_v2(sides[1:]) == {PoolName.INDEXER: [True] * 3}
    assert [(e.pool, e.op, e.verified) for e in run.sink.of(Copied)[1:]] == [
        ("indexer", Op.STORE, 3 * LAYERS),
        ("indexer", Op.FETCH, 3 * LAYERS),
    ]
    (file,) = tmp_path.glob(f"{keys_of()[2]}*.bin")
    file.write_bytes(bytes(reversed(file.read_bytes())))
    backend.batch_get_v2(sides[1:])
    (finding,) = run.sink.of(Finding)
    assert (finding.cls, finding.pool, finding.pages) == (
        FaultClass.STORAGE_DAMAGE,
        "indexer",
        (BACK[2],),
    )
