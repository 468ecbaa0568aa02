"""The agent sessions as a workload, without a model."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_dbg.repro.config import RunConfig
from hicache_dbg.repro.sessions import SessionWorkload
from hicache_dbg.repro.tokens import FIRST_CONTENT, Special
from hicache_dbg.repro.workload import End, Reply, Stop, Turn

CONFIG = RunConfig(sessions=3, rounds=3, ctx=40, max_tokens=5)


def _all_turns(workload: SessionWorkload, replies: dict[int, Reply]) -> list[Turn]:
    """Answer every turn with its session's reply until all have ended."""
    turns = []
    for step in range(1000):
        for turn in workload.ready(step):
            turns.append(turn)
            workload.answered(turn, replies[turn.session], step)
        if not workload.open():
            return turns
    raise AssertionError("the workload never ends")


def _turns_of_session_0(reply: Reply) -> list[Turn]:
    turns = _all_turns(SessionWorkload(CONFIG), dict.fromkeys(range(3), reply))
    return [turn for turn in turns if turn.session == 0]


TOOL = Reply((50, 51, int(Special.TOOL_CALL)), Stop.TOOL_CALL)
CUT = Reply((50, 51, 52, 53, 54), Stop.LENGTH)
SAID = Reply((50, int(Special.END)), Stop.END)
EMPTY = Reply((int(Special.END),), Stop.END)
FAILED = Reply((), Stop.ERROR, "lost")


@pytest.mark.parametrize(
    ("reply", "end", "rounds"),
    [
        (TOOL, End.MAXROUNDS, 3),
        (CUT, End.MAXROUNDS, 3),
        (SAID, End.DONE, 1),
        (EMPTY, End.NO_TOOL, 1),
        (FAILED, End.ERROR, 1),
    ],
)
def test_how_a_session_ends(reply: Reply, end: End, rounds: int) -> None:
    """A tool call or a full-length reply starts another round; an end token or an error ends it."""
    workload = SessionWorkload(CONFIG)
    turns = _all_turns(workload, dict.fromkeys(range(3), reply))
    assert {t.end for t in workload.transcripts.values()} == {end}
    assert len(turns) == 3 * rounds
    assert workload.progress() == (9, 9)


def test_first_prompts_share_the_system_prompt() -> None:
    """All sessions share a prefix and then differ; each has the requested length."""
    turns = list(SessionWorkload(RunConfig(sessions=5)).ready(0))
    prompts = np.stack([turn.tokens for turn in turns])
    assert prompts.shape == (5, 300)
    shared = int((prompts == prompts[0]).all(0).argmin())
    assert 128 <= shared < 150
    assert len({bytes(row[shared:]) for row in prompts}) == 5
    assert set(prompts[prompts < FIRST_CONTENT]) == {
        Special.SYSTEM,
        Special.USER,
        Special.ASSISTANT,
    }


@pytest.mark.parametrize("reply", [TOOL, CUT])
def test_a_prompt_continues_its_own_history(reply: Reply) -> None:
    """The next prompt is the last one, the actual reply, and then a tool result."""
    for before, after in pairwise(_turns_of_session_0(reply)):
        history = [*before.tokens, *reply.tokens]
        assert np.array_equal(after.tokens[: len(history)], history)
        assert after.tokens[len(history)] == Special.TOOL_RESULT
        assert after.tokens[-1] == Special.ASSISTANT


def test_tool_results_do_not_depend_on_replies() -> None:
    """Sessions with different replies get the same tool results."""
    told = [
        [
            after.tokens[len(before.tokens) + len(reply.tokens) :]
            for before, after in pairwise(turns)
        ]
        for reply in (TOOL, CUT)
        for turns in [_turns_of_session_0(reply)]
    ]
    assert len(told[0]) == 2
    assert all(np.array_equal(a, b) for a, b in zip(*told, strict=True))


@settings(max_examples=20, deadline=None)
@given(
    sessions=st.integers(1, 4),
    rounds=st.integers(1, 4),
    ctx=st.integers(4, 90),
    max_tokens=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_no_session_is_longer_than_said(
    sessions: int, rounds: int, ctx: int, max_tokens: int, seed: int
) -> None:
    """`longest` bounds every turn's length, however long the replies."""
    workload = SessionWorkload(RunConfig(sessions, rounds, ctx, max_tokens, seed=seed))
    full = Reply((50,) * max_tokens, Stop.LENGTH)
    turns = _all_turns(workload, dict.fromkeys(range(sessions), full))
    assert max(turn.capacity for turn in turns) <= workload.longest()
    assert all(len(turn.tokens) == ctx for turn in turns if turn.round == 0)
