"""Send many datagrams in one system call.

A thread releases the GIL for every call that may block and, beside threads that compute, gets it
back only after a switch interval (5 ms by default). One call per event would limit a sink to two
hundred events a second, however fast the receiver; one call per batch runs at the receiver's speed.
``sendmmsg`` is Linux's call for this; the standard library does not wrap it.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from itertools import accumulate, chain

__all__ = ["MOST", "Datagrams"]

#: Most datagrams per call; the kernel's own limit is 1024.
MOST = 512


class _Message(ctypes.Structure):
    """Mirror of ``struct msghdr`` of a connected socket: one vector, no address or control data."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint32),
        ("vector", ctypes.c_void_p),
        ("vectors", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Numbered(ctypes.Structure):
    """Mirror of ``struct mmsghdr``: a message, and how many of its bytes were sent."""

    _fields_ = (("message", _Message), ("sent", ctypes.c_uint))


class Datagrams:
    """Sends batches over connected sockets; the tables for the kernel are allocated once."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).sendmmsg
        self._vectors = (ctypes.c_size_t * (2 * MOST))()
        self._messages = (_Numbered * MOST)()
        start, width = ctypes.addressof(self._vectors), 2 * ctypes.sizeof(ctypes.c_size_t)
        for place, numbered in enumerate(self._messages):
            numbered.message.vector = start + place * width
            numbered.message.vectors = 1

    def send(self, file: int, datagrams: Sequence[bytes]) -> int:
        """Send ``datagrams`` in order on the socket ``file``; return how many were sent.

        Sending stops at the first datagram that fails, and raises only if that is the first of the
        batch.

        Raises:
            OSError: as ``send`` would for the first datagram; EAGAIN if the socket's own time limit
                (``SO_SNDTIMEO``) expired.
        """
        batch = datagrams[:MOST]
        data = b"".join(batch)
        sizes = [len(datagram) for datagram in batch]
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        places = accumulate(sizes, initial=start)
        flat: list[ctypes.c_size_t | int] = list(
            chain.from_iterable(zip(places, sizes, strict=False))
        )
        self._vectors[: len(flat)] = flat
        while (sent := self._call(file, self._messages, len(batch), 0)) < 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))
        return int(sent)
