"""The store of a run: a folder or a Mooncake Store; ``kill`` leaves it as a killed writer would.

``file`` and ``mooncake`` alone belong to the run and vanish with it; ``file:DIR`` and
``mooncake:HOST:RPC_PORT:METADATA_PORT`` persist, so that a later run finds what this one stored.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache_dbg.pools.controller import HiCacheController
from hicache_dbg.pools.storage.files import FileStore
from hicache_dbg.pools.storage.keys import Identity
from hicache_dbg.pools.storage.mooncake import MooncakeMissing, MooncakeStore
from hicache_dbg.pools.storage.store import PageStore
from hicache_dbg.pools.storage.tier import StorageTier
from hicache_dbg.repro.children import die_with_parent, uninterrupted
from hicache_dbg.repro.config import ConfigError, RunConfig
from hicache_dbg.repro.engine import DeviceMissing
from hicache_dbg.repro.faults.page_table import untold
from hicache_dbg.repro.mooncake_master import MasterMissing, master

__all__ = ["StoreMissing", "storage_tier"]

FORMS = "file, file:DIR, mooncake or mooncake:HOST:RPC_PORT:METADATA_PORT"
#: Memory that a run contributes to a Mooncake Store, in bytes.
SEGMENT_BYTES = 256 << 20
#: How long a process may take to store enough to be killed, in seconds.
KILL_TIMEOUT_S = 120.0


class StoreMissing(DeviceMissing):
    """The store that a run asks for is missing, or does not answer."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An existing store: its name as an option value, and how to open it."""

    name: str
    open: Callable[[], PageStore]


@contextmanager
def storage_tier(config: RunConfig) -> Iterator[StorageTier | None]:
    """Open the storage tier that ``config`` asks for, or yield None; remove the run's own store.

    Raises:
        ConfigError: ``storage`` has none of the forms above.
        StoreMissing: the store is not available.
    """
    if not config.storage:
        yield None
        return
    with ExitStack() as own:
        try:
            place = _place(config.storage, own)
            if config.kill:
                _kill_one(replace(config, storage=place.name, kill=False))
            backend = place.open()
        except (MooncakeMissing, MasterMissing, OSError) as error:
            raise StoreMissing(f"storage {config.storage!r} is not here: {error}") from error
        # The identity deliberately omits the index-K dtype: a page of the other dtype is then found
        # under the same key, and must be treated as a miss.
        yield StorageTier(backend, Identity(config.weights))


def _place(storage: str, own: ExitStack) -> _Place:
    kind, _, where = storage.partition(":")
    if kind == "file":
        folder = where or own.enter_context(TemporaryDirectory(prefix="hicache-dbg-"))
        return _Place(f"file:{Path(folder).absolute()}", lambda: FileStore(folder))
    if kind == "mooncake" and not where:
        running = own.enter_context(master())
        address, metadata = running.address, running.metadata
    elif kind == "mooncake" and where.count(":") == 2:
        host, rpc, http = where.split(":")
        address, metadata = f"{host}:{rpc}", f"http://{host}:{http}/metadata"
    else:
        raise ConfigError(f"storage is {storage!r}, expected {FORMS}")
    host, rpc = address.split(":")
    http = metadata.rsplit(":", 1)[1].split("/")[0]
    return _Place(
        f"mooncake:{host}:{rpc}:{http}",
        lambda: MooncakeStore(address, metadata, segment_bytes=SEGMENT_BYTES),
    )


# -- the writer that is killed ----------------------------------------------------------------


def _kill_one(config: RunConfig) -> None:
    """Let another process run over the same store, and kill it while it stores.

    Raises:
        ConfigError: it ended before it could be killed.
        StoreMissing: it stored too little within the time limit.
    """
    context, pages = get_context("spawn"), config.pool_set.kill_after
    ours, theirs = context.Pipe(duplex=False)
    writer = context.Process(target=_write, args=(config, theirs), daemon=True)
    with uninterrupted():
        writer.start()
    theirs.close()
    try:
        if not ours.poll(KILL_TIMEOUT_S):
            raise StoreMissing(f"no {pages} pages were stored within {KILL_TIMEOUT_S} s")
        ours.recv()
    except EOFError:
        raise ConfigError(
            f"the process to be killed ended before it stored {pages} pages; use more --sessions or "
            "--rounds, or leave --kill out"
        ) from None
    finally:
        writer.kill()  # SIGKILL: no handler runs, and no buffer is flushed
        writer.join()


def _write(config: RunConfig, tell: Connection) -> None:
    """Run as ``config`` says, report once enough pages are stored, and go on until killed."""
    from hicache_dbg.repro.run import Run, one_thread

    die_with_parent()
    os.nice(5)
    engine = list[HiCacheController]()
    enough = config.pool_set.kill_after

    def progress(_done: int, _total: int, _text: str) -> None:
        storage = engine[0].storage if engine else None
        if storage is not None and storage.stats.stored_pages >= enough and not tell.closed:
            tell.send(storage.stats.stored_pages)
            tell.close()

    job = Run(config, None, None, progress, {}, untold)
    with one_thread():
        job.go_through_tiers(engine.append)  # without judging the result
