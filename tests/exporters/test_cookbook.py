"""Every command in the documentation of journald runs against a real journald."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporters.journal import Journal
from tests.exporters.samples import copied, finding, health, started

from hicache_dbg.exporters.fields import MESSAGE_IDS
from hicache_dbg.exporters.journald import JournaldSink
from hicache_dbg.tracer.events import Event, FaultClass, Op, Tier

PAGE = Path(__file__).parents[2] / "docs" / "journald.md"
LOAD = {"op": Op.LOAD, "src": Tier.HOST, "dst": Tier.DEVICE}

EVENTS: list[Event] = [
    started(),
    copied(h=1),
    copied(h=2),
    copied(**LOAD),
    copied(pool="index_k", layout="layer_first", rank=1, **LOAD),
    copied(skipped={"reused": 2, "partial": 1}, requests=("8c0f6f2b", "another")),
    finding(),
    finding(cls=FaultClass.SLOT_REUSE, layer=3, pool="mla+index_k"),
    health(),
]

#: How many lines each command prints of those events; the first pattern that fits counts.
LINES = {
    "sed -E": 5,
    "grep -oE": 2,
    "HICACHE_OP=load [+]": 3,
    "HICACHE_TOKEN_GRANULAR=True": 0,
    "-F HICACHE_POOL": 4,
    "-F HICACHE_OP": 2,
    "-F HICACHE_LAYOUT": 2,
    "hicache-dbg -p err$": 2,
    "HICACHE_FINDING=row_width$": 1,
    "HICACHE_FINDING=slot_reuse": 1,
    "HICACHE_EXPECTED": 2,
    "HICACHE_POOL=deepseek_v4_c128": 1,
    "HICACHE_RANK=1": 1,
    "HICACHE_OP=load HICACHE_OP=backup": 7,
    "-g ": 1,
    "HICACHE_VERIFIED": 5,
    "HICACHE_SKIP_REASON=reused": 1,
    "HICACHE_REQUEST=8c0f6f2b": 1,
    "HICACHE_EVENT=health": 1,
    "HICACHE_EVENT=started": 1,
    "--since": 2,
    "-b -n 3": 3,
    "MESSAGE_ID=": 2,
}


def commands() -> list[str]:
    """Return the commands of the page's code blocks, one per line."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [command for block in blocks for command in block.splitlines()]


def in_namespace(command: str, journal: Journal) -> str:
    """Return the command with the test's journal in place of the machine's."""
    options = f"journalctl --namespace={journal.namespace} --no-pager --quiet"
    return command.replace("journalctl", options, 1)


@pytest.fixture
def filled(journal: Journal) -> Iterator[Journal]:
    """A journal that holds the events."""
    sink = JournaldSink(journal.socket)
    sink.emit(EVENTS)
    journal.lines()
    yield journal
    sink.close()


@pytest.mark.service
def test_every_command_prints_what_it_promises(filled: Journal) -> None:
    """Each command of the page finds exactly the events that it is about."""
    found = {}
    for command in commands():
        if " -f " not in command:
            done = subprocess.run(  # noqa: S602 - the commands are the page's, pipes included
                in_namespace(command, filled),
                shell=True,
                check=True,
                capture_output=True,
                text=True,
            )
            assert done.stderr == "", command
            found[command] = len(done.stdout.splitlines())
    expected = {
        command: next((n for key, n in LINES.items() if re.search(key, command)), None)
        for command in found
    }
    assert found == expected


@pytest.mark.service
def test_following_shows_a_finding_as_it_happens(filled: Journal) -> None:
    """The page's follow command prints a finding that comes after it was started."""
    (command,) = (command for command in commands() if " -f " in command)
    with subprocess.Popen(
        shlex.split(in_namespace(command, filled)), stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        seen = [follower.stdout.readline() for _ in range(2)]
        sink = JournaldSink(filled.socket)
        sink.emit([copied(), finding(cls=FaultClass.BIT_FLIP)])
        sink.close()
        seen.append(follower.stdout.readline())
        follower.terminate()
    assert [re.findall(r"finding=(\w+)", text) for text in seen] == [
        ["row_width"],
        ["slot_reuse"],
        ["bit_flip"],
    ]


def test_the_page_has_the_ids_of_the_code() -> None:
    """The message ids on the page are those of the code."""
    text = PAGE.read_text()
    for kind, message_id in MESSAGE_IDS.items():
        assert f"| {kind.__struct_config__.tag} | `{message_id}` |" in text
