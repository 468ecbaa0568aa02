"""Compile CUDA C++ on first use with the NVRTC that torch ships, and launch it.

torch has no public binding for either, so this calls both libraries directly.
"""

import ctypes
import importlib.util
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

__all__ = ["CudaError", "Kernel", "compiled", "kernel_of"]


_One = ctypes.c_void_p * 1
#: Argument types of cuLaunchKernel; with them set once, plain ints need no conversion per launch.
_LAUNCH = (ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)


class CudaError(RuntimeError):
    """CUDA refused a call; the message holds the error code."""


class Kernel:
    """A kernel whose only argument is one structure."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._launch = _driver().cuLaunchKernel
        self._launch.argtypes = _LAUNCH

    def launch(self, grid: int, block: int, stream: int, argument: ctypes.Structure) -> None:
        """Queue ``grid`` blocks of ``block`` threads on ``stream`` (a raw ``cudaStream_t``)."""
        arguments = _One(ctypes.addressof(argument))
        code = self._launch(self._handle, grid, 1, 1, block, 1, 1, 0, stream, arguments, None)
        if code:
            _require(code, f"to launch {grid} blocks of {block} threads")


@cache
def kernel_of(source: Path, name: str, architecture: str, macros: tuple[str, ...]) -> Kernel:
    """Build kernel ``name`` of a source file for ``architecture`` (``sm_90``) with ``macros``."""
    image = compiled(source.read_text(), architecture, macros)
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    code = _driver().cuLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0)
    _require(code, f"to load {source.name}")
    code = _driver().cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode())
    _require(code, f"to find {name} in {source.name}")
    return Kernel(kernel)


def compiled(source: str, architecture: str, macros: Iterable[str]) -> bytes:
    """Compile ``source`` to machine code.

    Raises:
        CudaError: the source does not compile; the message is the compiler's log.
    """
    compiler, program = _compiler(), ctypes.c_void_p()
    compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{m}" for m in macros)]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if compiler.nvrtcCompileProgram(program, len(options), array):
            raise CudaError(f"a kernel does not build: {_bytes(program, 'ProgramLog').decode()}")
        return _bytes(program, "CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(_compiler(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(_compiler(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _require(code: int, what: str) -> None:
    if code:
        raise CudaError(f"CUDA refused {what} with code {code}")


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> Any:
    """Load NVRTC from the wheels beside torch's, or else from the loader's search path."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    for folder in _wheel_folders():
        if (folder / name).exists():
            # NVRTC opens its builtins library by bare name, not relative to itself.
            for part in folder.glob(f"libnvrtc-builtins.so.{major}*"):
                ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(folder / name))
    return ctypes.CDLL(name)


def _wheel_folders() -> Iterable[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else spec.submodule_search_locations or []
    return chain.from_iterable(sorted(Path(root).glob("*/lib")) for root in roots)
