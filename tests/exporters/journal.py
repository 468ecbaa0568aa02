"""A real systemd-journald in its own namespace, and journalctl's output for it."""

import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path

__all__ = ["JOURNALD", "Journal"]

JOURNALD = Path("/lib/systemd/systemd-journald")
WAIT_S = 10.0

_CONFIGURATION = "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\nRuntimeMaxUse=2G\n"


class Journal:
    """Starts the daemon on construction; :meth:`close` removes everything it made."""

    def __init__(self) -> None:
        self.namespace = f"hicache{uuid.uuid4().hex[:12]}"
        self.folder = Path(f"/run/systemd/journal.{self.namespace}")
        self.socket = self.folder / "socket"
        self._configuration = Path(f"/etc/systemd/journald@{self.namespace}.conf")
        self._configuration.write_text(_CONFIGURATION)
        self.start()

    def start(self) -> None:
        """Start the daemon and wait until its socket answers; the socket file alone may be stale."""
        self.daemon = subprocess.Popen(
            [JOURNALD, self.namespace], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WAIT_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.socket} did not answer within {WAIT_S} s")
            time.sleep(0.01)

    def stop(self) -> None:
        """End the daemon."""
        self.daemon.terminate()
        self.daemon.wait(WAIT_S)

    def journalctl(self, *arguments: str) -> str:
        """Return journalctl's output for this namespace, once everything sent is stored.

        The daemon of a namespace exits after half a minute without work; all is stored then.
        """
        if self.daemon.poll() is None:
            self._call("--sync")
        return self._call("--no-pager", "--quiet", *arguments)

    def lines(self, *arguments: str) -> list[str]:
        """Return the lines of journalctl's output."""
        return self.journalctl(*arguments).splitlines()

    def close(self) -> None:
        """End the daemon and remove its configuration, sockets and journals."""
        self.stop()
        self._configuration.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        for stores in (Path("/run/log/journal"), Path("/var/log/journal")):
            for store in stores.glob(f"*.{self.namespace}"):
                shutil.rmtree(store)

    def _call(self, *arguments: str) -> str:
        command = ["journalctl", f"--namespace={self.namespace}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return probe.connect_ex(str(self.socket)) == 0
