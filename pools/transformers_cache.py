"""A cache for Hugging Face decoders whose pages live in our tiers.

    store = PrefixStore.for_model(model.config, device_pages=64, host_pages=1024)
    with store.open(prompt, new_tokens=64) as cache:
        ids = torch.tensor([prompt])
        sequence = model.generate(ids, cache=cache, max_new_tokens=64)[0].tolist()
        cache.keep(sequence)

The prefix that a prompt shares with earlier ones is not recomputed: its pages are matched in the
prefix tree, pages on the host are loaded back, and each layer waits only for its own bytes. The
whole pages of a kept sequence stay in the cache, backed up as the controller's policy says.

Needs the ``transformers`` package, 5.24 or newer (extra ``llm``).
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from hicache_dbg.pools.controller import HiCacheController, Match
from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.geometry import Layout, PoolGeometry
from hicache_dbg.pools.group import PoolGroup
from hicache_dbg.pools.indices import Ids
from hicache_dbg.pools.kinds import mha
from hicache_dbg.pools.ticket import LoadTicket

__all__ = ["PagedCache", "PrefixStore", "SequenceTooLongError", "TieredCache", "geometry_of"]

Gate = Callable[[int], None]
"""Called with a layer's number before each access to that layer."""


class SequenceTooLongError(ValueError):
    """A sequence outgrew the pages that were reserved for it."""


def geometry_of(config: Any, page_tokens: int, dtype: torch.dtype) -> PoolGeometry:
    """Return the pool geometry of a decoder's keys and values, from its ``transformers`` config.

    Raises:
        ValueError: the model has layers without keys and values, or with a sliding window.
    """
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    if kinds != {"full_attention"}:
        raise ValueError(
            f"the model has layers of kind {', '.join(sorted(kinds))}, expected full_attention alone"
        )
    heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return mha(config.num_hidden_layers, page_tokens, heads, width, dtype=dtype)


class PrefixStore:
    """Cached prefixes of one model in a device and a host tier; computes one sequence at a time.

    Args:
        controller: a controller whose group has one pool, with a geometry from :func:`geometry_of`.
    """

    def __init__(self, controller: HiCacheController) -> None:
        (self._pool,) = controller.group.device.values()
        self.controller = controller
        self.page_tokens = controller.group.page_tokens

    @classmethod
    def for_model(
        cls,
        config: Any,
        *,
        device_pages: int,
        host_pages: int,
        page_tokens: int = 16,
        layout: Layout = Layout.PAGE_FIRST,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> Self:
        """Create pools, group and controller for a model with ``config``.

        :meth:`close` ends them.
        """
        group = PoolGroup.build(
            (geometry_of(config, page_tokens, dtype),),
            device_pages=device_pages,
            host_pages=host_pages,
            layout=layout,
            device=device,
            pin=torch.device(device).type == "cuda",
        )
        return cls(HiCacheController(group))

    def open(self, tokens: Sequence[int], new_tokens: int) -> "TieredCache":
        """Open a cache for ``tokens`` and at most ``new_tokens`` more.

        The cache's length is the cached prefix, so pass the whole prompt to ``generate``. The last
        prompt token is always computed, because its output is the first new token.

        Raises:
            OutOfPages: the device has too few pages.
        """
        controller = self.controller
        prompt = np.asarray(tokens, np.int64)
        needed = -(-(prompt.size + new_tokens) // self.page_tokens)
        controller.prefetch(prompt[:-1])
        match = controller.match(prompt[:-1])
        own = np.empty(0, np.int64)
        try:
            own = controller.alloc_device(needed - match.pages)
            ticket = controller.load_back(match)
            pages = np.concatenate((ticket.device_pages, own))
            return TieredCache(self, self._pool, match, ticket, pages, own)
        except BaseException:
            controller.free_device(own)
            controller.unlock(match)
            raise

    def close(self) -> None:
        """Finish all copies and unpin the host memory."""
        self.controller.close()
        self.controller.group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PagedCache(Cache):
    """Keys and values of one sequence (batch size 1), in pages of a device pool.

    Args:
        pool: a pool with a geometry from :func:`geometry_of`.
        pages: page ids of the whole sequence, in order.
        cached: number of tokens already there, or there once ``gate`` has let a layer through.
        gate: see :data:`Gate`.
    """

    def __init__(self, pool: DevicePool, pages: Ids, cached: int, gate: Gate) -> None:
        slots = _slots(pages, pool.geometry.slots_per_page).to(pool.device)
        super().__init__(
            layers=[
                _PagedLayer(pool, layer, slots, cached, gate)
                for layer in range(pool.geometry.layers)
            ]
        )


class TieredCache(PagedCache):
    """Keys and values of one sequence, partly from the tiers; made by :meth:`PrefixStore.open`.

    ``cached`` tokens existed when it was opened, ``loaded`` of them on the host only. As a context
    manager it discards what was computed unless :meth:`keep` was called within the block.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: PrefixStore,
        pool: DevicePool,
        match: Match,
        ticket: LoadTicket,
        pages: Ids,
        own: Ids,
    ) -> None:
        self.cached = match.pages * store.page_tokens
        self.loaded = match.host_pages.size * store.page_tokens
        super().__init__(pool, pages, self.cached, ticket.wait_layer)
        self._store, self._match, self._pages, self._own = store, match, pages, own
        self._open = True

    def keep(self, tokens: Sequence[int]) -> None:
        """Close the cache and keep the whole pages of ``tokens``, the complete sequence.

        ``tokens`` may end with a token that was sampled but never fed back (the last new one).
        """
        # A forward pass that was interrupted has some layers shorter than others.
        length = min(map(self.get_seq_length, range(len(self.layers))))
        computed = np.asarray(tokens, np.int64)[:length]
        pages = computed.size // self._store.page_tokens
        if pages <= self._match.pages:
            self.drop()  # nothing new; the matched pages belong to the tree already
            return
        self._end(computed[: pages * self._store.page_tokens], pages)

    def drop(self) -> None:
        """Close the cache and discard everything computed since it was opened."""
        self._end(np.empty(0, np.int64), 0)

    def _end(self, computed: Ids, pages: int) -> None:
        if not self._open:
            return
        self._open = False
        controller = self._store.controller
        try:
            if pages:
                controller.insert(computed, self._pages[:pages])
                controller.free_device(self._pages[pages:])
            else:
                controller.free_device(self._own)
        finally:
            controller.unlock(self._match)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()  # no effect after keep()


class _PagedLayer(CacheLayerMixin):
    """One layer: takes new keys and values, stores them in pool rows, returns the whole context."""

    is_sliding = False

    def __init__(
        self, pool: DevicePool, layer: int, slots: torch.Tensor, cached: int, gate: Gate
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # a mixin without types
        self.is_initialized = True
        self._rows = {name: _rows(pool.layer(name, layer)) for name in ("k", "v")}
        self._slots = slots
        self._length = cached
        self._layer = layer
        self._gate = gate

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the pages exist from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, and return those of the whole context.

        Args:
            key_states: ``[1, heads, new, dim]``.
            value_states: ``[1, heads, new, dim]``.

        Returns:
            Keys and values, each ``[1, heads, length, dim]``.
        """
        if key_states.shape[0] != 1:
            raise ValueError(
                f"a batch of {key_states.shape[0]} sequences, expected 1: open a cache each"
            )
        end = self._length + key_states.shape[2]
        if end > self._slots.numel():
            raise SequenceTooLongError(
                f"a sequence of {end} tokens in pages for {self._slots.numel()}: "
                "open the cache for more new tokens"
            )
        self._gate(self._layer)  # returns at once if nothing is being loaded
        own, context = self._slots[self._length : end], self._slots[:end]
        self._length = end
        return (
            self._through("k", own, context, key_states),
            self._through("v", own, context, value_states),
        )

    def _through(
        self, name: str, own: torch.Tensor, context: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        rows = self._rows[name]
        rows[own] = states[0].transpose(0, 1).to(rows.dtype)
        return rows[context].transpose(0, 1).unsqueeze(0).to(states.dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys that a query of ``query_length`` attends to."""
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._length

    def get_max_length(self) -> int:
        """Return the number of tokens its pages can hold."""
        return self._slots.numel()

    def reset(self) -> None:
        """Refuse: close the cache and open a new one for each sequence."""
        raise NotImplementedError("a paged cache is not reset: open one for each sequence")


def _slots(pages: Ids, page_tokens: int) -> torch.Tensor:
    """Return the pool row of each token, int64 of shape ``[pages * page_tokens]``."""
    first = np.asarray(pages, np.int64)[:, None] * page_tokens
    return torch.from_numpy((first + np.arange(page_tokens)).reshape(-1))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """View ``[page, slot, head, width]`` as ``[row, head, width]``, without a copy."""
    return tensor.view(-1, *tensor.shape[2:])
