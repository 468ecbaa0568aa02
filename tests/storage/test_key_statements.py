"""Processes that share a store state their page keys; a join finds where they disagree."""

import re
from pathlib import Path

import pytest
from tests.pools.caching import sequences
from tests.pools.stored import cache_of, take_turns

from hicache_dbg.pools.storage import engine
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.keys import Identity, PageKey, page_keys
from hicache_dbg.tracer.attach import hicache_key_statements
from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import FaultClass, Stated, Topic
from hicache_dbg.tracer.memory_sink import MemorySink
from hicache_dbg.tracer.runtime import Runtime
from hicache_dbg.tracer.settings import Gate, Settings

READERS = [[1, 1, 1], [2, 2], [3]]


def process(folder: Path, salt: bytes = b"") -> MemorySink:
    """Return the recording of a process over a store with its own key seed."""

    def salted(identity: Identity, tokens: bytes, page_bytes: int) -> list[PageKey]:
        keys = page_keys(identity, tokens + salt, page_bytes)
        other = page_keys(Identity(identity.model + salt.decode()), tokens, page_bytes)
        return [PageKey(name.name, key.tokens) for key, name in zip(keys, other, strict=False)]

    sink = MemorySink()
    with pytest.MonkeyPatch.context() as patch:
        if salt:
            patch.setattr(engine, "page_keys", salted)
        with Runtime.start(Settings(gate=Gate.ON), sinks=[sink]) as runtime:
            with cache_of(FileStore(folder)) as controller:
                take_turns(controller, sequences(READERS))
            assert runtime.flush()
    return sink


def keys_of(sink: MemorySink) -> list[Stated]:
    """Return the keys under which a process knows the contents that it saw."""
    return [said for said in sink.of(Stated) if said.topic is Topic.KEY]


def test_each_content_is_named_once(tmp_path: Path) -> None:
    """One statement per first page, however often it is requested, even by a single process."""
    said = keys_of(process(tmp_path))
    assert len({one.request for one in said}) == len(said) == len(READERS)
    assert all(re.fullmatch("[0-9a-f]{32}", one.values[0]) for one in said)


def test_no_more_is_said_than_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are made the same way: a few of them are enough in a run of any length."""
    monkeypatch.setattr(hicache_key_statements, "MOST", 2)
    assert len(keys_of(process(tmp_path))) == 2


def test_processes_with_one_key_for_one_content_agree(tmp_path: Path) -> None:
    """The same store and contents, one process after the other, give no finding."""
    sinks = [process(tmp_path) for _ in range(2)]
    assert join([sink.events for sink in sinks]) == []


def test_a_key_that_is_salted_by_its_process_is_found(tmp_path: Path) -> None:
    """Nobody reads a wrong byte, but neither process finds what the other writes."""
    ours, theirs = process(tmp_path), process(tmp_path, b"!")
    (found,) = join([ours.events, theirs.events])
    assert (found.cls, found.check) == (FaultClass.KEY_IDENTITY, "keys")
    assert f"{len(READERS)} contents in all" in found.message
