"""Many datagrams in one call: each arrives complete and in order, or remains with the caller."""

import errno
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.exporters.datagrams import MOST, Datagrams

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return two connected datagram sockets."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield one, other
    one.close()
    other.close()


@given(batch=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=10))
def test_what_was_sent_arrives_in_order(batch: list[bytes]) -> None:
    """Each datagram arrives unchanged, including zeros and line breaks."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        assert Datagrams().send(one.fileno(), batch) == len(batch)
        assert [other.recv(1000) for _ in batch] == batch


def test_a_call_takes_no_more_than_fits_its_tables(pair: Pair) -> None:
    """Of too many datagrams the first ones are sent, and the call returns how many."""
    one, other = pair
    found: list[bytes] = []
    batch = [b"%d" % number for number in range(MOST + 7)]

    def read() -> None:
        found.extend(other.recv(100) for _ in batch)

    reader = threading.Thread(target=read)
    reader.start()
    sender = Datagrams()
    assert sender.send(one.fileno(), batch) == MOST
    assert sender.send(one.fileno(), batch[MOST:]) == 7
    reader.join(20)
    assert found == batch


def test_it_stops_before_one_that_is_too_large(pair: Pair) -> None:
    """The datagrams before a too large one are sent; only the large one is refused."""
    one, other = pair
    sender = Datagrams()
    large = b"x" * (1 << 22)
    assert sender.send(one.fileno(), [b"a", b"b", large, b"c"]) == 2
    with pytest.raises(OSError, match="too long") as caught:
        sender.send(one.fileno(), [large, b"c"])
    assert caught.value.errno == errno.EMSGSIZE
    assert [other.recv(10) for _ in range(2)] == [b"a", b"b"]


def test_a_full_socket_takes_what_it_can(pair: Pair) -> None:
    """A non-blocking socket returns how many were sent, and then reports that it is full."""
    one, _ = pair
    one.settimeout(0)
    sender = Datagrams()
    went = sender.send(one.fileno(), [b"x"] * MOST)
    assert 0 < went < MOST
    with pytest.raises(BlockingIOError):
        sender.send(one.fileno(), [b"x"])
