"""Pages that are being stored are held for a while, and readers wait for that room."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event, Timer

import pytest
from tests.pools.caching import sequences, turn
from tests.pools.stored import PAGES, cache_of

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.results import PageResult
from hicache_dbg.pools.storage.store import Record


class Held(FileStore):
    """A file store that stores nothing until released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go_on = Event()

    def put(self, records: Iterable[Record]) -> Iterator[PageResult]:
        """Store the pages once released."""
        self.go_on.wait(60)
        yield from super().put(records)


def test_room_is_found_once_its_pages_are_stored(tmp_path: Path) -> None:
    """A reader that wants the whole device while a sequence is being stored gets it when that ends."""
    store = Held(tmp_path)
    with cache_of(store, timeout=30.0) as controller:
        turn(controller, sequences([[1, 1, 1, 1]])[0])
        Timer(0.05, store.go_on.set).start()
        assert controller.alloc_device(PAGES).size == PAGES


def test_a_store_that_hangs_is_not_waited_for_twice(tmp_path: Path) -> None:
    """The pages stay held: the reader fails after the tier's patience, the next one at once."""
    store = Held(tmp_path)
    with cache_of(store) as controller:
        turn(controller, sequences([[1, 1, 1, 1]])[0])
        for _ in range(2):
            with pytest.raises(OutOfPages):
                controller.alloc_device(PAGES)
        state = controller.storage.stores._state if controller.storage else None
        assert state is not None
        assert state.storing() == 0.0
        store.go_on.set()
