"""A Hugging Face decoder on our pages replies as on its own cache, and reuses prefixes."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.services import require

from hicache_dbg.pools.allocator import OutOfPages
from hicache_dbg.pools.geometry import Layout

require(importlib.util.find_spec("transformers"), "transformers is not installed: make model")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from hicache_dbg.pools.transformers_cache import (  # noqa: E402
    PrefixStore,
    SequenceTooLongError,
    geometry_of,
)

PAGE = 4
NEW = 6
CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A small decoder with grouped heads and seeded random weights."""
    torch.manual_seed(7)
    made: LlamaForCausalLM = LlamaForCausalLM(CONFIG).eval()
    return made


@pytest.fixture(params=[Layout.PAGE_FIRST, Layout.LAYER_FIRST, Layout.PAGE_HEAD])
def store(request: pytest.FixtureRequest) -> Iterator[PrefixStore]:
    """Pools with room for one sequence on the device and for many on the host."""
    with PrefixStore.for_model(
        CONFIG, device_pages=8, host_pages=64, page_tokens=PAGE, layout=request.param
    ) as opened:
        yield opened


def said(model: Any, prompt: list[int], cache: object = None) -> list[int]:
    """Return prompt and greedy reply."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        sequence = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    return list(sequence[0].tolist())


def through(
    store: PrefixStore, model: LlamaForCausalLM, prompt: list[int]
) -> tuple[list[int], int, int]:
    """Return prompt and reply through the tiers, and how many tokens were cached and loaded."""
    with store.open(prompt, NEW) as cache:
        sequence = said(model, prompt, cache)
        cache.keep(sequence)
    store.controller.flush()
    store.controller.check()
    return sequence, cache.cached, cache.loaded


def prompts(seed: int, count: int) -> list[list[int]]:
    """Return prompts that share a prefix."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 97, 9).tolist()
    return [[*shared, *rng.integers(1, 97, 7).tolist()] for _ in range(count)]


def test_a_cache_that_cannot_be_opened_holds_no_page(
    store: PrefixStore, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are given back and its prefix is unlocked, so that others find room."""
    prompt, _ = prompts(3, 2)
    through(store, model, prompt)

    def no_memory(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room for the slots")

    with monkeypatch.context() as patch:
        patch.setattr("hicache_dbg.pools.transformers_cache._slots", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            store.open(prompt, NEW)
    store.controller.flush()
    assert store.controller.alloc_device(8).size == 8


def test_replies_are_those_of_the_models_own_cache(
    store: PrefixStore, model: LlamaForCausalLM
) -> None:
    """Over two rounds of four chats, with pages evicted to the host and loaded back in between."""
    chats = prompts(1, 4)
    loaded = 0
    for _ in range(2):
        for at, prompt in enumerate(chats):
            sequence, cached, from_host = through(store, model, prompt)
            assert sequence == said(model, prompt)
            assert cached <= len(prompt) - 1
            loaded += from_host
            chats[at] = [*sequence, 5 + at] if len(sequence) < 24 else prompt
    assert loaded > 0


def test_a_prompt_that_was_asked_before_is_not_computed_again(
    store: PrefixStore, model: LlamaForCausalLM
) -> None:
    """The second time, all whole pages are cached except the one with the last token."""
    (prompt,) = prompts(2, 1)
    _, first, _ = through(store, model, prompt)
    _, second, _ = through(store, model, prompt)
    assert (first, second) == (0, (len(prompt) - 1) // PAGE * PAGE)


def test_a_turn_that_fails_gives_its_pages_back(store: PrefixStore) -> None:
    """Pages that were not kept are dropped, and the device is as empty as before."""
    before = store.controller.allocators["device"].available
    with pytest.raises(RuntimeError, match="planted"), store.open(prompts(3, 1)[0], NEW):
        raise RuntimeError("planted")
    assert store.controller.allocators["device"].available == before
    store.controller.check()


def test_keeping_less_than_was_cached_takes_nothing_from_the_cache(
    store: PrefixStore, model: LlamaForCausalLM
) -> None:
    """Matched pages belong to the cache, even if the kept tokens end before them."""
    (prompt,) = prompts(2, 1)
    through(store, model, prompt)
    with store.open(prompt, NEW) as cache:
        cache.keep(prompt[:PAGE])
    store.controller.flush()
    store.controller.check()
    assert through(store, model, prompt)[0] == said(model, prompt)


def test_keeping_before_anything_was_computed_gives_the_pages_back(
    store: PrefixStore, model: LlamaForCausalLM
) -> None:
    """This holds even while the cached pages are still being loaded."""
    prompt, *others = ([*range(first, first + 16)] for first in (1, 30, 60))
    for tokens in (prompt, *others):
        through(store, model, tokens)
    with store.open(prompt, NEW) as cache:
        assert cache.loaded
        cache.keep(prompt)
    store.controller.flush()
    device = store.controller.allocators["device"]
    assert device.pages - device.available == store.controller.tree.stats.device_pages


def test_what_only_some_layers_have_computed_is_not_kept(store: PrefixStore) -> None:
    """An interrupted forward pass leaves no page behind."""
    (prompt,) = prompts(2, 1)
    states = torch.zeros(1, 2, len(prompt), 8)
    with store.open(prompt, NEW) as cache:
        cache.update(states, states, 0)
        cache.keep(prompt)
    assert store.controller.tree.stats.device_pages == 0


def test_a_sequence_that_outgrows_its_pages_is_refused(
    store: PrefixStore, model: LlamaForCausalLM
) -> None:
    """The error has both lengths, and the next sequence is served."""
    (prompt,) = prompts(4, 1)
    with (
        store.open(prompt, 1) as cache,
        pytest.raises(SequenceTooLongError, match="a sequence of 21 tokens"),
    ):
        said(model, prompt, cache)
    assert through(store, model, prompt)[0] == said(model, prompt)


def test_more_than_the_device_holds_is_refused(store: PrefixStore) -> None:
    """The pools are unharmed."""
    with pytest.raises(OutOfPages):
        store.open(list(range(1, 80)), NEW)
    store.controller.check()


def test_a_batch_is_refused(store: PrefixStore, model: LlamaForCausalLM) -> None:
    """A cache holds one sequence."""
    with store.open(prompts(5, 1)[0], NEW) as cache, pytest.raises(ValueError, match="expected 1"):
        cache.update(torch.zeros(2, 2, 1, 8), torch.zeros(2, 2, 1, 8), 0)


def test_a_model_with_windows_is_refused() -> None:
    """Layers with a sliding window have no complete prefix to keep."""
    config = LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        geometry_of(config, PAGE, torch.float32)
