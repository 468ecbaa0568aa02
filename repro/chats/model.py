"""A Hugging Face decoder as the model of a run, with keys and values in the run's pages."""

import torch

from hicache_dbg.pools.device import DevicePool
from hicache_dbg.pools.transformers_cache import PagedCache
from hicache_dbg.repro.chats.smollm2 import Chatbot
from hicache_dbg.repro.model import LayerGate, Model, open_gate

__all__ = ["ChatModel"]


class ChatModel(Model):
    """Generates the replies of ``bot``, one sequence at a time."""

    def __init__(self, bot: Chatbot, pool: DevicePool) -> None:
        self._bot = bot
        self._pool = pool

    def prefill(
        self,
        tokens: torch.Tensor,
        start: int,
        table: torch.Tensor,
        gate: LayerGate = open_gate,
    ) -> int:
        """See :meth:`hicache_dbg.repro.model.Model.prefill`."""
        return self._bot.next_token(tokens, PagedCache(self._pool, table.numpy(), start, gate))

    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor
    ) -> list[int]:
        """See :meth:`hicache_dbg.repro.model.Model.decode`."""
        return [
            self._bot.next_token(
                token, PagedCache(self._pool, table.numpy(), int(position), open_gate)
            )
            for token, position, table in zip(tokens.split(1), positions, tables, strict=True)
        ]
