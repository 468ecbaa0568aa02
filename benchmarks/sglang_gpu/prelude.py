# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""Make SGLang's released Python run on a newer torch image; import this before anything of SGLang.

No pool, kernel or transfer is replaced. Three things differ from the releases' pins: newer transformers
already define model types that SGLang registers, the kernels' libraries are not on the loader's path,
and packages unrelated to the pools are absent.
"""

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers

__all__ = ["stood_in"]

#: What SGLang imports for grammars, other kernels and shells, and nothing measured here calls.
ABSENT = ("flashinfer", "xgrammar", "IPython", "llguidance", "outlines", "interegular")
_REGISTERS = [
    "AutoConfig",
    "AutoTokenizer",
    "AutoProcessor",
    "AutoImageProcessor",
    "AutoFeatureExtractor",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoVideoProcessor",
]
_LIBRARIES = ("libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcudart.so.13")

#: The packages replaced by stand-ins so far.
stood_in: list[str] = []


class _Anything(type):
    """A class whose every attribute is such a class: enough for imports and annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__


def _anything(name: str) -> _Anything:
    def schema(*_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    return _Anything(
        name,
        (),
        {
            "__get_pydantic_core_schema__": classmethod(schema),
            "__init__": lambda *_, **__: None,
            "__call__": lambda *_, **__: None,
        },
    )


class _Module(ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins, as the last finder, so that installed packages take precedence."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        stood_in.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def _preload(names: Sequence[str]) -> None:
    for name in names:
        for path in Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}"):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            break


def _let_register_again(cls: Any) -> None:
    bound = cls.register

    def register(*args: Any, **kwargs: Any) -> Any:
        return bound(*args, **{**kwargs, "exist_ok": True})

    cls.register = staticmethod(register)


_preload(_LIBRARIES)
for _name in _REGISTERS:
    if hasattr(transformers, _name):
        _let_register_again(getattr(transformers, _name))
if not any(isinstance(finder, _StandIns) for finder in sys.meta_path):
    sys.meta_path.append(_StandIns())

with contextlib.suppress(
    ImportError
):  # it asks whether flashinfer is there: a stand-in computes nothing
    import sgl_kernel.elementwise
    import sgl_kernel.sampling

    sgl_kernel.elementwise._has_flashinfer = False  # noqa: SLF001
    sgl_kernel.sampling._has_flashinfer = False  # noqa: SLF001
