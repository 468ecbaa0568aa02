"""Two ranks over gloo: layers broadcast from one to the other are digested on both afterwards."""

# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import released_ranks
from rank_scenes import LAYERS, SCENES
from released_ranks import has

from hicache_dbg.tracer.checks.join import join
from hicache_dbg.tracer.events import Copied, Event, FaultClass, Finding, Op, Stated, Topic

LIMIT_S = 120
Played = Callable[[str], list[list[Event]]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return the events of both ranks by scene; two processes play all scenes once."""
    if not any(map(has, SCENES)):
        pytest.skip("every rank keeps what is its own")
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                released_ranks.__file__,
                f"{rank}",
                f"{folder / 'store'}",
                f"{folder}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [one.communicate(timeout=LIMIT_S)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [one.returncode for one in ranks] == [0, 0], "\n".join(said)[-6000:]

    def of(scene: str) -> list[list[Event]]:
        if not has(scene):
            pytest.skip("this version does not share it")
        files = [folder / f"{scene}.{rank}" for rank in range(2)]
        return [msgspec.json.decode(Path(file).read_bytes(), type=list[Event]) for file in files]

    return of


def tiles(events: list[Event]) -> dict[tuple[str, str, int], tuple[str, ...]]:
    """Return the digests stated for each page, one per layer."""
    return {
        (said.request, said.component, said.page): said.values
        for said in events
        if isinstance(said, Stated) and said.topic is Topic.TILES
    }


@pytest.mark.parametrize(
    ("scene", "name"), [("deduplicated", "broadcast 1"), ("shared_out", "load 1")]
)
def test_every_rank_states_what_arrived(played: Played, scene: str, name: str) -> None:
    """Both pages have the same digests in every layer on both ranks, and a join finds nothing."""
    ranks = played(scene)
    first, second = map(tiles, ranks)
    assert first == second
    assert {key[1] for key in first} == {"latent"} | (
        {"index_k"} if scene == "shared_out" else set()
    )
    latent = {key: values for key, values in first.items() if key[1] == "latent"}
    assert latent.keys() == {(name, "latent", page) for page in range(2)}
    assert all(len(values) == LAYERS for values in latent.values())
    assert len({value for values in latent.values() for value in values}) == 2 * LAYERS
    assert join(ranks) == []
    assert [one for rank in ranks for one in rank if isinstance(one, Finding)] == []


@pytest.mark.parametrize("scene", ["deduplicated_damaged", "shared_out_damaged"])
def test_a_byte_that_changed_on_the_way_is_found(played: Played, scene: str) -> None:
    """Neither rank sees it alone; a join names the layer and the page."""
    ranks = played(scene)
    assert [one for rank in ranks for one in rank if isinstance(one, Finding)] == []
    (finding,) = join(ranks)
    assert finding.cls is FaultClass.RANK_DIVERGENCE
    assert (finding.component, finding.layer, finding.pages) == ("latent", 1, (0,))


def test_a_load_without_a_host_page_is_a_line(played: Played) -> None:
    """The rank without host bytes records what it received; the one that loaded has its own line, verified."""
    first, second = (
        [one for one in rank if isinstance(one, Copied)] for rank in played("deduplicated")
    )
    assert [(one.op, one.io_backend, one.verified) for one in first] == [
        (Op.BACKUP, "kernel", 0),
        *[(Op.LOAD, "kernel", 2)] * LAYERS,
    ]
    (event,) = second
    assert (event.op, event.io_backend, event.pages, event.layers) == (
        *(Op.LOAD, "broadcast"),
        *(2, LAYERS),
    )
    assert (event.witnessed, event.tiles) == (2 * LAYERS, 2 * LAYERS)
    assert event.cls == "MLAHostDedupBroadcaster"
