"""The process's rank, taken from the arguments of SGLang's scheduler."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hicache_dbg.tracer.attach.sglang.place import Place, of_caller, placed
from hicache_dbg.tracer.settings import Settings


def run_scheduler_process(  # noqa: PLR0917 - SGLang's own
    server_args: object,
    port_args: object,
    gpu_id: int,
    tp_rank: int,
    pp_rank: int,
    dp_rank: int | None,
    load_plugins: Callable[[], Place | None],
) -> Place | None:
    """Has SGLang's name and arguments, and loads the plugins first, as SGLang's does."""
    return load_plugins()


def scheduler(tp: int, pp: int, dp: int | None, **args: object) -> Place | None:
    """Return the rank that a plugin finds in that process."""
    return run_scheduler_process(SimpleNamespace(**args), None, 0, tp, pp, dp, of_caller)


def test_the_real_scheduler_has_these_arguments() -> None:
    """This release still has the argument names that we read, in the function that loads the plugins."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("sglang.srt.managers.scheduler")
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    (function,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "run_scheduler_process"
    ]
    names = {argument.arg for argument in function.args.args}
    assert {"server_args", "tp_rank", "pp_rank", "dp_rank"} <= names
    first = next(node for node in function.body if isinstance(node, ast.Expr))
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert any(getattr(call.func, "id", "") == "load_plugins" for call in calls[:2]), first


def test_ranks_are_one_number_in_all_worlds() -> None:
    """Two replicas of two stages of two ranks are eight processes with eight numbers."""
    sizes = {"tp_size": 2, "pp_size": 2, "dp_size": 2}
    places = [
        scheduler(tp, pp, dp, **sizes) for dp in range(2) for pp in range(2) for tp in range(2)
    ]
    assert [place.rank for place in places if place] == list(range(8))
    assert {place.ranks for place in places if place} == {8}
    assert str(places[-1]) == "tp=1 pp=1 dp=1"


def test_attention_groups_are_one_world() -> None:
    """With attention data parallelism the tensor ranks already count all processes."""
    sizes = {"tp_size": 4, "pp_size": 1, "dp_size": 2, "enable_dp_attention": True}
    place = scheduler(3, 0, 1, **sizes)
    assert place is not None
    assert (place.rank, place.ranks, place.dp) == (3, 4, 1)


def test_a_replica_that_is_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLANG_DP_RANK is used if the controller passes no number."""
    monkeypatch.setenv("SGLANG_DP_RANK", "3")
    place = scheduler(0, 0, None, tp_size=1, dp_size=4)
    assert place is not None
    assert (place.rank, place.ranks) == (3, 4)


def test_elsewhere_there_is_no_place() -> None:
    """Outside the scheduler the process is rank 0 of 1, as the environment says."""
    assert of_caller() is None
    assert placed(Settings(), None) == Settings()
    assert placed(Settings(), Place(1, 0, 0, 2, 1, 1)).rank == 1
