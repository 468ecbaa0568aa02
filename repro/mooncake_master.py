"""Start a private Mooncake master on the loopback interface, for runs that are not given one."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hicache_dbg.repro.children import die_with, uninterrupted

__all__ = ["BINARY", "Master", "MasterMissing", "master", "master_binary"]

BINARY = "mooncake_master"
START_TIMEOUT_S = 20.0
HOST = "127.0.0.1"


class MasterMissing(RuntimeError):  # noqa: N818 (a state of the machine, not of the program)
    """The master's program is missing, or does not start."""


@dataclass(slots=True)
class Master:
    """A running master: its addresses and its process."""

    address: str
    metadata: str
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """Kill it at once."""
        self.process.kill()
        self.process.wait()


def master_binary() -> str | None:
    """Return the path of the master's program, beside this Python or on PATH; None if missing."""
    beside = Path(sys.executable).with_name(BINARY)
    return str(beside) if beside.exists() else shutil.which(BINARY)


@contextmanager
def master(lease_ms: int = 5000) -> Iterator[Master]:
    """Run a master with its metadata service on free loopback ports, within the context.

    Raises:
        MasterMissing: its program is missing, or it did not answer within 20 s.
    """
    program = master_binary()
    if program is None:
        raise MasterMissing(f"{BINARY} is not here; install hicache-dbg[mooncake]")
    rpc, metadata, metrics = _free_ports(3)
    command = [
        program,
        "-enable_http_metadata_server=true",
        f"-http_metadata_server_host={HOST}",
        f"-http_metadata_server_port={metadata}",
        f"-rpc_port={rpc}",
        f"-metrics_port={metrics}",
        f"-default_kv_lease_ttl={lease_ms}",
    ]
    with uninterrupted():
        process = subprocess.Popen(  # noqa: S603 - the program found above
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - system calls, without locks
        )
    running = Master(f"{HOST}:{rpc}", f"http://{HOST}:{metadata}/metadata", process)
    try:
        _await(running, (rpc, metadata))
        yield running
    finally:
        running.kill()


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until each is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((HOST, 0))
        return [item.getsockname()[1] for item in sockets]


def _await(running: Master, ports: tuple[int, ...]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    waiting = list(ports)
    while waiting:
        if running.process.poll() is not None or time.monotonic() > deadline:
            raise MasterMissing(
                f"{BINARY} did not answer on port {waiting[0]} (exit status {running.process.poll()})"
            )
        with suppress(OSError), socket.create_connection((HOST, waiting[0]), 0.2):
            waiting.pop(0)
            continue
        time.sleep(0.02)
