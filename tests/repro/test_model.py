"""The model: what it computes must not depend on how the work was cut."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repro.samples import DTYPES, make_store, words

from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.kvio import KvStore, Slots
from hicache_dbg.repro.model import Model


def _cached(model: Model, store: KvStore, table: torch.Tensor, tokens: int) -> list[torch.Tensor]:
    """Latents and index keys of the first ``tokens`` tokens, of every layer."""
    slots = Slots.of(table.unsqueeze(0), torch.arange(tokens).unsqueeze(0), 64)
    return [
        values
        for layer in range(model.spec.layers)
        for values in (
            store.latent.read(layer, slots)[0],
            store.index.read(layer, table).flatten(0, 1)[:tokens],
        )
    ]


def _reply(
    model: Model, store: KvStore, prompts: list[torch.Tensor], steps: int
) -> list[list[int]]:
    """What the model says to ``prompts``, decoded together."""
    pages = -(-(max(map(len, prompts)) + steps) // 64)
    tables = torch.arange(pages * len(prompts)).view(len(prompts), pages)
    said = [[model.prefill(store, p, 0, t)] for p, t in zip(prompts, tables, strict=True)]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    for step in range(steps):
        last = torch.tensor([reply[-1] for reply in said])
        following = model.decode(store, last, lengths + step, tables)
        for reply, token in zip(said, following, strict=True):
            reply.append(token)
    return said


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=6, deadline=None)
@given(length=st.integers(2, 200), data=st.data())
def test_chunks_do_not_matter(
    model: Model, dtype: IndexDtype, length: int, data: st.DataObject
) -> None:
    """Any cutting of a prompt caches the same values and gives the same next token."""
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4)))
    tokens = words(length, seed=length)
    one, many = make_store(4, dtype), make_store(8, dtype)
    plain, scattered = torch.arange(4), torch.tensor([6, 1, 7, 0])

    expected = model.prefill(one, tokens, 0, plain)
    got = [
        model.prefill(many, tokens[start:end], start, scattered)
        for start, end in pairwise([0, *cuts, length])
    ]

    assert got[-1] == expected
    left, right = _cached(model, one, plain, length), _cached(model, many, scattered, length)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_long_prompts_are_cut_by_the_model(model: Model) -> None:
    """A prompt longer than a chunk gives what it gives a chunk of another size at a time."""
    tokens = words(700)
    table = torch.arange(11)
    expected = model.prefill(make_store(11), tokens, 0, table)
    store = make_store(11)
    got = [
        model.prefill(store, tokens[start : start + 333], start, table)
        for start in range(0, 700, 333)
    ]
    assert got[-1] == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_decoding_is_prefilling(model: Model, dtype: IndexDtype) -> None:
    """Sequences decoded together say what each says when its words are prefilled in one piece."""
    prompts = [words(length, seed=length) for length in (3, 64, 150, 100)]
    for prompt, reply in zip(
        prompts, _reply(model, make_store(12, dtype), prompts, 12), strict=True
    ):
        whole = torch.cat((prompt, torch.tensor(reply[:-1])))
        for end in (len(prompt) + 1, len(whole)):
            again = model.prefill(make_store(3, dtype), whole[:end], 0, torch.arange(3))
            assert again == reply[end - len(prompt)]


def test_replies_are_diverse(model: Model) -> None:
    """A reply is no loop, and the replies to different prompts differ."""
    said = _reply(model, make_store(24), [words(300, seed=n) for n in range(4)], 48)
    assert min(len(set(reply)) for reply in said) > 30
    assert len({tuple(reply) for reply in said}) == 4


def test_the_indexer_decides(model: Model) -> None:
    """Other index keys for part of each page, all else equal, make another reply."""
    assert model.spec.top_k * 4 < 300
    prompt, store, table = words(300), make_store(6), torch.arange(6)
    expected = _reply(model, make_store(6), [prompt], 8)[0]
    said = [model.prefill(store, prompt, 0, table)]
    # Tokens 33..63 of each page: what a copy of 8,448 of 16,384 bytes leaves alone.
    lost = Slots(table.repeat_interleave(31), torch.arange(33, 64).repeat(6))
    for layer in range(model.spec.layers):
        store.index.write(layer, lost, torch.zeros(6 * 31, 128, dtype=torch.float64))
    for step in range(8):
        last, position = torch.tensor([said[-1]]), torch.tensor([300 + step])
        said += model.decode(store, last, position, table.unsqueeze(0))
    assert said[0] == expected[0]
    assert said != expected


def test_every_layer_waits_before_it_reads(model: Model) -> None:
    """The gate of each layer is asked once a prefill, in order, however many chunks there are."""
    asked: list[int] = []
    model.prefill(make_store(10), words(600), 0, torch.arange(10), asked.append)
    assert asked == list(range(model.spec.layers))


def test_a_closed_gate_stops_the_layer(model: Model) -> None:
    """An error of a gate comes out, and the layer behind it has cached nothing."""

    def gate(layer: int) -> None:
        if layer == 1:
            raise OSError("load failed")

    store, page = make_store(1), torch.tensor([0])
    with pytest.raises(OSError, match="load failed"):
        model.prefill(store, words(10), 0, page, gate)
    assert store.index.read(0, page).any()
    assert not store.index.read(1, page).any()
