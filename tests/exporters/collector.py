"""An OTLP receiver in its own process, so that decoding does not slow the sender down.

Run as a script, it prints its endpoint and, once its standard input closes, the operation of each
span.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.exporters.receiver import Receiver, attributes

__all__ = ["Collector", "collecting"]


@dataclass(slots=True)
class Collector:
    """The process, and how to reach it."""

    endpoint: str
    process: subprocess.Popen[str]

    def operations(self) -> list[int]:
        """End the process and return the operation of each span, in order of arrival."""
        told, _ = self.process.communicate()
        found: list[int] = json.loads(told)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector that listens."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.exporters.collector"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield Collector(process.stdout.readline().strip(), process)


def main() -> None:
    """Receive until standard input closes."""
    receiver = Receiver()
    print(receiver.endpoint, flush=True)  # noqa: T201 - read by the test
    sys.stdin.read()
    receiver.close()
    operations = [attributes(span)["hicache.op_id"] for span in receiver.spans]
    print(json.dumps(operations))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
