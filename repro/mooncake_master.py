"""Start a private Mooncake master on the loopback interface, for runs that are not given one."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hicache_dbg.repro.children import die_with, uninterrupted

__all__ = ["BINARY", "Master", "MasterMissing", "master", "master_binary"]

BINARY = "mooncake_master"
START_TIMEOUT_S = 20.0
#: How often it is started: it takes no port but those given, and another process may take one first.
TRIALS = 4
HOST = "127.0.0.1"
#: The state of a listening socket in Linux's tables.
LISTENS = "0A"


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
    running = _start(program, lease_ms)
    try:
        yield running
    finally:
        running.kill()


def _start(program: str, lease_ms: int) -> Master:
    """Start a master, with other ports if it ends because one is taken."""
    deadline = time.monotonic() + START_TIMEOUT_S
    ports, status = list[int](), None
    for _ in range(TRIALS):
        ports = _free_ports(3)
        running = _begin(program, lease_ms, *ports)
        try:
            if _comes_up(running, ports, deadline):
                return running
        except BaseException:
            running.kill()
            raise
        status = running.process.poll()
        running.kill()
        if status is None:
            break
    raise MasterMissing(f"{BINARY} did not answer on ports {ports} (exit status {status})")


def _begin(program: str, lease_ms: int, rpc: int, metadata: int, metrics: int) -> Master:
    command = [
        program,
        "-enable_http_metadata_server=true",
        f"-http_metadata_server_host={HOST}",
        f"-http_metadata_server_port={metadata}",
        f"-rpc_address={HOST}",
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
    return Master(f"{HOST}:{rpc}", f"http://{HOST}:{metadata}/metadata", process)


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until each is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((HOST, 0))
        return [item.getsockname()[1] for item in sockets]


def _comes_up(running: Master, ports: Sequence[int], deadline: float) -> bool:
    """Wait until it listens on all ``ports`` itself; return False if it ends, or does not by ``deadline``.

    That somebody accepts connections there says nothing: a master that finds a port taken ends two
    seconds later.
    """
    while running.process.poll() is None and time.monotonic() < deadline:
        if set(ports) <= _listening(running.process.pid):
            return True
        time.sleep(0.02)
    return False


def _listening(process: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    files, found = set[str](), set[int]()
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                files.add(str(file.readlink()))
    for table in "tcp", "tcp6":
        with suppress(OSError):
            for line in Path(f"/proc/{process}/net/{table}").read_text("ascii").splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == LISTENS and f"socket:[{inode}]" in files:
                    found.add(int(local.rpartition(":")[2], 16))
    return found
