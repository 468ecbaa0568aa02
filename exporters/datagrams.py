"""Many datagrams by one system call.

A thread lets go of the interpreter for each call that may block, and beside threads that compute it
gets it back only after a switch interval (5 ms by default). At one call an event that is two hundred
events a second, however fast the receiver is; at one call a batch it is the receiver's own speed.
``sendmmsg`` is Linux's call for this and has no name in the standard library.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from itertools import accumulate, chain

__all__ = ["MOST", "Datagrams"]

#: Datagrams of one call at most; the kernel's own limit is 1024.
MOST = 512


class _Message(ctypes.Structure):
    """``struct msghdr`` of a connected socket: one vector, no address, no control data."""

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
    """``struct mmsghdr``: a message, and how many of its bytes went."""

    _fields_ = (("message", _Message), ("sent", ctypes.c_uint))


class Datagrams:
    """Sends batches over connected sockets; the tables for the kernel are made once."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).sendmmsg
        self._vectors = (ctypes.c_size_t * (2 * MOST))()
        self._messages = (_Numbered * MOST)()
        start, width = ctypes.addressof(self._vectors), 2 * ctypes.sizeof(ctypes.c_size_t)
        for place, numbered in enumerate(self._messages):
            numbered.message.vector = start + place * width
            numbered.message.vectors = 1

    def send(self, file: int, datagrams: Sequence[bytes]) -> int:
        """Send the first of ``datagrams``, in order, on the socket ``file``; how many went.

        It stops at the first that does not go, and raises only where that is the first of all.

        Raises:
            OSError: as ``send`` would for the first datagram; EAGAIN where the socket's own time
                limit (``SO_SNDTIMEO``) ran out.
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
