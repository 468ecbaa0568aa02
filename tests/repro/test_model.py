"""The models: results must not depend on how the work is split."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repro.samples import Pools, make_model, words

from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.mla import SPEC
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.sets import POOL_SETS

#: Every pool set, and index-K in both dtypes where there is any.
KINDS: tuple[tuple[str, IndexDtype], ...] = (
    ("mla_index_k", "bf16"),
    ("mla_index_k", "fp8"),
    ("mha", "bf16"),
    ("deepseek_v4", "bf16"),
    ("deepseek_v4", "fp8"),
)


def _same_bytes(left: Pools, right: Pools, pages: torch.Tensor, there: torch.Tensor) -> bool:
    """Return whether ``pages`` of one set of pools equal the pages ``there`` of another."""
    return all(
        torch.equal(mine.view(torch.uint8)[pages], other.view(torch.uint8)[there])
        for name, pool in left.items()
        for component, buffer in pool.buffers.items()
        for mine, other in zip(buffer.tensors, right[name].buffers[component].tensors, strict=True)
    )


def _reply(model: Model, page: int, prompts: list[torch.Tensor], steps: int) -> list[list[int]]:
    """Return the model's replies to ``prompts``, decoded as a batch."""
    pages = -(-(max(map(len, prompts)) + steps) // page)
    tables = torch.arange(pages * len(prompts)).view(len(prompts), pages)
    said = [[model.prefill(p, 0, t)] for p, t in zip(prompts, tables, strict=True)]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    for step in range(steps):
        last = torch.tensor([reply[-1] for reply in said])
        following = model.decode(last, lengths + step, tables)
        for reply, token in zip(said, following, strict=True):
            reply.append(token)
    return said


@pytest.mark.parametrize(("pools", "dtype"), KINDS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_chunks_do_not_matter(pools: str, dtype: IndexDtype, data: st.DataObject) -> None:
    """Any chunking of a prompt caches the same bytes in every pool and gives the same next token."""
    page = POOL_SETS[pools].page_size
    length = data.draw(st.integers(2, 2 * page + page // 4), "length")
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4), "cuts"))
    tokens = words(length, seed=length)
    (one, left), (many, right) = make_model(3, pools, dtype), make_model(8, pools, dtype)
    plain, scattered = torch.arange(3), torch.tensor([6, 1, 7])

    expected = one.prefill(tokens, 0, plain)
    got = [
        many.prefill(tokens[start:end], start, scattered)
        for start, end in pairwise([0, *cuts, length])
    ]

    assert got[-1] == expected
    assert _same_bytes(left, right, plain, scattered)


@pytest.mark.parametrize("pools", POOL_SETS)
def test_long_prompts_are_cut_by_the_model(pools: str) -> None:
    """A prompt longer than a chunk gives the same result with another chunk size."""
    tokens = words(700)
    table = torch.arange(11)
    (one, left), (many, right) = make_model(11, pools), make_model(11, pools)
    expected = one.prefill(tokens, 0, table)
    got = [many.prefill(tokens[start : start + 333], start, table) for start in range(0, 700, 333)]
    assert got[-1] == expected
    assert _same_bytes(left, right, table, table)


@pytest.mark.parametrize(("pools", "dtype"), KINDS)
def test_batched_decoding_is_prefilling(pools: str, dtype: IndexDtype) -> None:
    """Sequences decoded as a batch reply as when each is prefilled in one piece."""
    page = POOL_SETS[pools].page_size
    # Into the first page, over the end of one, over the end of a group of 128, in the middle.
    prompts = [words(length, seed=length) for length in (3, page - 4, 122, 2 * page + 22)]
    said = _reply(make_model(12, pools, dtype)[0], page, prompts, 12)
    for prompt, reply in zip(prompts, said, strict=True):
        whole = torch.cat((prompt, torch.tensor(reply[:-1])))
        for end in (len(prompt) + 1, len(whole)):
            again = make_model(3, pools, dtype)[0].prefill(whole[:end], 0, torch.arange(3))
            assert again == reply[end - len(prompt)]


@pytest.mark.parametrize("pools", POOL_SETS)
def test_replies_are_diverse(pools: str) -> None:
    """A reply does not loop, and different prompts get different replies."""
    page = POOL_SETS[pools].page_size
    said = _reply(make_model(24, pools)[0], page, [words(300, seed=n) for n in range(4)], 48)
    assert min(len(set(reply)) for reply in said) > 25
    assert len({tuple(reply) for reply in said}) == 4


def test_the_indexer_decides() -> None:
    """Changing only the index keys of part of each page changes the reply."""
    assert SPEC.top_k * 4 < 300
    prompt, table = words(300), torch.arange(6)
    expected = _reply(make_model(6)[0], 64, [prompt], 8)[0]
    model, pools = make_model(6)
    said = [model.prefill(prompt, 0, table)]
    # Tokens 33..63 of each page: what a copy of 8,448 of 16,384 bytes leaves alone.
    for layer in pools["dsa_index_k"].buffers["index_k"].tensors:
        layer.view(6, 64, 128)[:, 33:] = 0
    for step in range(8):
        last, position = torch.tensor([said[-1]]), torch.tensor([300 + step])
        said += model.decode(last, position, table.unsqueeze(0))
    assert said[0] == expected[0]
    assert said != expected


@pytest.mark.parametrize("pools", POOL_SETS)
def test_every_layer_waits_before_it_reads(pools: str) -> None:
    """Each layer's gate is waited for once per prefill, in order, however many chunks there are."""
    asked: list[int] = []
    make_model(10, pools)[0].prefill(words(600), 0, torch.arange(10), asked.append)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("pools", POOL_SETS)
def test_a_closed_gate_stops_the_layer(pools: str) -> None:
    """A gate's error is raised, and the layer behind it has cached nothing."""

    def gate(layer: int) -> None:
        if layer == 1:
            raise OSError("load failed")

    model, made = make_model(1, pools)
    with pytest.raises(OSError, match="load failed"):
        model.prefill(words(10), 0, torch.tensor([0]), gate)
    (anchor, *_) = (buffer for pool in made.values() for buffer in pool.buffers.values())
    assert [bool(layer.any()) for layer in anchor.tensors] == [True, False, False]
