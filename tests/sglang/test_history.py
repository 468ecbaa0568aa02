"""The generations of pages when an operation began, queried after its end."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.attach.sglang import gpu_history
from hicache_dbg.tracer.attach.sglang.gpu_history import History
from hicache_dbg.tracer.attach.sglang.registry import Allocations, PoolRecord

PAGE, PAGES = 4, 6
EVERY = np.arange(PAGES)


def record_of(source: Allocations) -> PoolRecord:
    """Return a stub with what the history reads off a pool's record."""
    record: Any = SimpleNamespace(sources=[source], generation=source.at)
    return cast("PoolRecord", record)


def tokens(pages: list[int]) -> torch.Tensor:
    """Return all indices of pages."""
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


STEPS = st.lists(
    st.one_of(
        st.just("begin"),
        st.just("end"),
        st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=3, unique=True),
    ),
    max_size=40,
)


@given(STEPS)
def test_an_open_operation_sees_the_pages_as_they_were(steps: list[str | list[int]]) -> None:
    """Whatever is reallocated meanwhile, and in whatever order operations end."""
    source, other, history = Allocations(PAGE, PAGES), Allocations(PAGE, PAGES), History()
    record = record_of(source)
    begun: list[tuple[int, np.ndarray]] = []
    for step in steps:
        if step == "begin":
            begun.append((history.begin(), source.at(EVERY).copy()))
        elif isinstance(step, list):
            history.note(source, tokens(step))
            history.note(other, tokens(step))
        elif begun:
            moment, then = begun.pop(len(begun) // 2)
            assert history.at(record, EVERY, moment).tolist() == then.tolist()
            history.end(moment)
    for moment, then in begun:
        assert history.at(record, EVERY, moment).tolist() == then.tolist()
        history.end(moment)
    assert not history._log


def test_what_was_forgotten_is_nobodys_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """After more allocations than are kept, earlier operations match no page and not each other."""
    monkeypatch.setattr(gpu_history, "MOST", 3)
    source, history = Allocations(PAGE, PAGES), History()
    record, first = record_of(source), history.begin()
    history.note(source, tokens([0]))
    second = history.begin()
    for _ in range(5):
        history.note(source, tokens([1]))
    seen = [history.at(record, EVERY, moment) for moment in (first, second)]
    assert all((one < 0).all() for one in seen)
    assert not (seen[0] == seen[1]).any()
    assert history.at(record, EVERY, history.begin()).tolist() == source.at(EVERY).tolist()
