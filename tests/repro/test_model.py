"""The model: what it computes must not depend on how the work was cut."""

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_dbg.pools.kinds import IndexDtype
from hicache_dbg.repro.kvio import KvStore
from hicache_dbg.repro.model import Model
from hicache_dbg.repro.weights import ModelSpec
from hicache_dbg.repro.workload import content_tokens

from .conftest import StoreMaker

DTYPES: tuple[IndexDtype, ...] = ("bf16", "fp8")


def _tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(content_tokens(count, seed))


def _bytes_of(store: KvStore, table: torch.Tensor, tokens: int) -> list[torch.Tensor]:
    """What is cached of ``tokens`` tokens, of every layer."""
    rows = torch.arange(tokens)
    layers = range(ModelSpec().layers)
    return [store.index.read(n, table).flatten(0, 1)[rows] for n in layers]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(2, 200), data=st.data())
def test_chunks_do_not_matter(
    model: Model, make_store: StoreMaker, dtype: IndexDtype, length: int, data: st.DataObject
) -> None:
    """Any cutting of a prompt caches the same bytes and gives the same next token."""
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4)))
    tokens = _tokens(length, seed=length)
    one, many = make_store(4, dtype), make_store(8, dtype)
    plain, scattered = torch.arange(4), torch.tensor([6, 1, 7, 0])

    expected = model.prefill(one, tokens, 0, plain)
    for start, end in pairwise([0, *cuts, length]):
        got = model.prefill(many, tokens[start:end], start, scattered)

    assert got == expected
    pairs = zip(_bytes_of(one, plain, length), _bytes_of(many, scattered, length), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_decoding_is_prefilling(
    model: Model, make_store: StoreMaker, dtype: IndexDtype
) -> None:
    """Sequences decoded together say what each says when its words are prefilled in one piece."""
    lengths, steps = (3, 64, 150, 100), 12
    store = make_store(4 * len(lengths), dtype)
    tables = torch.arange(4 * len(lengths)).view(len(lengths), 4)
    prompts = [_tokens(length, seed=length) for length in lengths]
    said = [[model.prefill(store, p, 0, t)] for p, t in zip(prompts, tables, strict=True)]
    for step in range(steps):
        following = model.decode(
            store,
            torch.tensor([words[-1] for words in said]),
            torch.tensor(lengths) + step,
            tables,
        )
        for words, token in zip(said, following, strict=True):
            words.append(token)

    for prompt, words in zip(prompts, said, strict=True):
        whole = torch.cat((prompt, torch.tensor(words[:-1])))
        for end in (len(prompt) + 1, len(whole)):
            again = model.prefill(make_store(4, dtype), whole[:end], 0, torch.arange(4))
            assert again == words[end - len(prompt)]


def test_replies_are_diverse(model: Model, make_store: StoreMaker) -> None:
    """A reply is no loop: most of its tokens differ, and so do the replies to different prompts."""
    store = make_store(32, "bf16")
    tables = torch.arange(32).view(4, 8)
    said = [[model.prefill(store, _tokens(300, seed=n), 0, tables[n])] for n in range(4)]
    for step in range(48):
        last = torch.tensor([words[-1] for words in said])
        for words, token in zip(
            said, model.decode(store, last, torch.full((4,), 300 + step), tables), strict=True
        ):
            words.append(token)
    assert min(len(set(words)) for words in said) > 30
    assert len({tuple(words) for words in said}) == 4


def test_the_indexer_decides(model: Model, make_store: StoreMaker) -> None:
    """Other index keys of half the tokens of each page, all else equal, make another reply."""
    assert model.spec.top_k * 4 < 300
    replies = []
    for broken in (False, True):
        store = make_store(6, "bf16")
        table = torch.arange(6)
        words = [model.prefill(store, _tokens(300), 0, table)]
        if broken:
            # What a copy of 8,448 of a page's 16,384 bytes leaves behind.
            for layer in store.index.pages:  # type: ignore[attr-defined]
                layer[:, 33:] = 0
        for step in range(8):
            words += model.decode(
                store, torch.tensor([words[-1]]), torch.tensor([300 + step]), table.unsqueeze(0)
            )
        replies.append(words)
    assert replies[0][0] == replies[1][0]
    assert replies[0] != replies[1]


def test_every_layer_waits_before_it_reads(model: Model, make_store: StoreMaker) -> None:
    """The gate of each layer is asked once a prefill, in order, however many chunks there are."""
    asked: list[int] = []
    model.prefill(make_store(20, "bf16"), _tokens(1100), 0, torch.arange(20), asked.append)
    assert asked == list(range(model.spec.layers))


def test_a_closed_gate_stops_the_layer(model: Model, make_store: StoreMaker) -> None:
    """An error of a gate comes out, and the layers behind it have cached nothing."""

    def gate(layer: int) -> None:
        if layer == 1:
            raise OSError("load failed")

    store = make_store(1, "bf16")
    with pytest.raises(OSError, match="load failed"):
        model.prefill(store, _tokens(10), 0, torch.arange(1), gate)
    assert store.index.read(0, torch.arange(1)).any()
    assert not store.index.read(1, torch.arange(1)).any()
