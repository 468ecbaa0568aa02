"""Launching compiled Triton kernels through the CUDA driver, without Triton's Python launcher.

Every run-time argument of our kernels is a 64-bit integer, and our own memory describes the launch, so
a launch is one ``struct.pack_into`` and one call with four arguments.
"""

import ctypes
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

from hicache_dbg.tracer.digest.driver import again, driven, driver

__all__ = ["LaunchError", "Launcher", "PreparedLaunch"]

_POINTER = ctypes.c_void_p

#: CUlaunchConfig: grid and block extents, shared bytes, (padding), stream, attributes, their count.
_CONFIG = "7I4xQQQ"
_CONFIG_BYTES = struct.calcsize(_CONFIG)
_STREAM_AT = struct.calcsize("7I4x")
_COLUMNS, _WORD = struct.Struct("<I"), struct.Struct("<Q")
_LEADING = struct.Struct("<7q")
#: The most columns a grid can have.
_MOST_COLUMNS = (1 << 31) - 1


class LaunchError(RuntimeError):
    """A compiled kernel does not have the form that can be launched here; the message says why."""


class Launcher:
    """A loaded kernel, bound to the run-time arguments that never change.

    Args:
        kernel: A Triton ``CompiledKernel``; it is kept alive.
        varying: How many leading arguments are given with each call.
        fixed: The arguments after these.

    Raises:
        LaunchError: If the kernel needs parameters or scratch memory that this launcher cannot supply.
    """

    def __init__(self, kernel: Any, varying: int, fixed: Sequence[int]) -> None:
        _ = kernel.run  # loads the binary onto the current device
        bits = _parameter_bits(kernel.asm["ptx"])
        scratch = getattr(kernel.metadata, "global_scratch_size", 0)
        if len(bits) < varying + len(fixed) or set(bits) != {"64"} or scratch:
            raise LaunchError(
                f"{kernel.metadata.name}: compiled to parameters of {bits} bits and {scratch} bytes "
                f"of scratch memory: expected {varying + len(fixed)} of 64 bits or more, and none"
            )
        self._kernel = kernel
        self._function = _POINTER(kernel.function)
        self._block = (1, 32 * kernel.metadata.num_warps, 1, 1, kernel.metadata.shared)
        # Parameters beyond ours are Triton's own scratch pointers; they stay null.
        self._values = ctypes.create_string_buffer(_CONFIG_BYTES + 8 * len(bits))
        struct.pack_into(
            f"<{len(fixed)}q", self._values, _CONFIG_BYTES + 8 * varying, *(int(x) for x in fixed)
        )
        self._config, self._pointers = _addresses(self._values, len(bits))
        self._pack = struct.Struct(f"<{_CONFIG}{varying}q").pack_into
        self._launch = driver().cuLaunchKernelEx
        self._lock = threading.Lock()

    def __call__(self, columns: int, rows: int, stream: int, *varying: int) -> None:
        """Enqueue a grid of ``columns`` x ``rows`` programs on ``stream`` (a raw handle).

        Raises:
            DriverError: If the driver refuses.
        """
        with self._lock:
            self._pack(self._values, 0, columns, rows, *self._block, stream, 0, 0, *varying)
            driven(self._launch, self._config, self._function, self._pointers, None)

    def prepared(
        self, per_column: int, rows: int, counted: int, *varying: int, columns: int = _MOST_COLUMNS
    ) -> "PreparedLaunch":
        """Prepare a launch that can be enqueued again and again.

        Args:
            per_column: How many items a program handles at a time.
            rows: The grid's rows.
            counted: The index of the argument that holds the number of items; given with each call.
            varying: The leading arguments.
            columns: The grid's most columns; with fewer than the items need, programs loop over them.
        """
        with self._lock:
            self._pack(self._values, 0, 1, rows, *self._block, 0, 0, 0, *varying)
            values = self._values.raw
        at = _CONFIG_BYTES + 8 * counted
        grid = per_column, columns
        return PreparedLaunch(self, self._function, values, len(self._pointers), grid, at)


class PreparedLaunch:
    """A launch whose arguments mostly stay the same, made with one driver call.

    Created by :meth:`Launcher.prepared`. It has its own memory; use it from one thread at a time.
    """

    def __init__(  # noqa: PLR0917
        self,
        launcher: "Launcher",
        function: Any,
        values: bytes,
        parameters: int,
        grid: tuple[int, int],
        count_at: int,
    ) -> None:
        self._launcher = launcher  # keeps the kernel loaded
        self._per_column, self._columns = grid
        self._count_at = count_at
        self._function = function
        self._values = ctypes.create_string_buffer(values, len(values))
        self._config, self._pointers = _addresses(self._values, parameters)
        self._launch = driver().cuLaunchKernelEx
        self._stream = self._count = 0

    def __call__(self, stream: int, count: int, *leading: int) -> None:
        """Enqueue the launch on ``stream`` (a raw handle), for ``count`` items.

        ``leading`` replaces the first seven arguments, the count among them.

        Raises:
            DriverError: If the driver refuses.
        """
        if leading:
            _LEADING.pack_into(self._values, _CONFIG_BYTES, *leading)
        if stream != self._stream or count != self._count:
            self._stream, self._count = stream, count
            columns = min(-(-count // self._per_column), self._columns)
            _COLUMNS.pack_into(self._values, 0, columns)
            _WORD.pack_into(self._values, _STREAM_AT, stream)
            _WORD.pack_into(self._values, self._count_at, count)
        code = self._launch(self._config, self._function, self._pointers, None)
        if code:
            again(code, self._launch, self._config, self._function, self._pointers, None)

    def filled(self, count: int, bases: int, unit: int) -> tuple[int, bytes]:
        """Return the kernel's address and a launch's memory, but for what each call changes.

        That is the stream, where the page ids are and their step, and where the digests go.
        """
        values = bytearray(self._values.raw)
        _LEADING.pack_into(values, _CONFIG_BYTES, bases, 0, 0, unit, count, 0, count)
        _COLUMNS.pack_into(values, 0, min(-(-count // self._per_column), self._columns))
        return self._function.value or 0, bytes(values)


def _addresses(values: "ctypes.Array[ctypes.c_char]", parameters: int) -> tuple[Any, Any]:
    """Return the addresses in ``values`` of the launch configuration and of each parameter."""
    config = ctypes.addressof(values)
    at = config + _CONFIG_BYTES
    pointers = (_POINTER * parameters)(*(at + 8 * index for index in range(parameters)))
    return _POINTER(config), pointers


def _parameter_bits(ptx: str) -> list[str]:
    """Return the width in bits of each parameter of the only entry point, in order."""
    entry = ptx[ptx.index(".entry") :]
    return re.findall(r"\.param \.[a-z](\d+)", entry[: entry.index("{")])
