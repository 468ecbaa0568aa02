"""The channel: whatever a peer sends or leaves unread, this end goes on in bounded time."""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.handover.pair import Pair, handmade

from hicache_dbg.pools.handover import channel as module
from hicache_dbg.pools.handover import frames
from hicache_dbg.pools.handover.channel import Channel
from hicache_dbg.pools.handover.errors import PeerLost
from hicache_dbg.pools.handover.messages import Abort, Beat, Ended, Offer, Room, encode

__all__ = ["handmade"]

SILENCE_S = 0.2


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Connection]]:
    """One end, and the raw connection of its peer."""
    ours, theirs = Pipe()
    with closing(Channel(ours, SILENCE_S)) as channel, theirs:
        yield channel, theirs


def framed(raw: bytes) -> bytes:
    """Return a frame as it is on the wire."""
    return struct.pack("!I", len(raw)) + raw


@given(
    st.lists(
        st.one_of(
            st.builds(Abort, attempt=st.integers(0, 9), reason=st.text(max_size=9)),
            st.builds(Room, attempt=st.integers(0, 9), pages=st.just(tuple(range(40_000)))),
        ),
        max_size=4,
    ),
    st.data(),
)
def test_messages_arrive_in_order_however_their_bytes_are_cut(
    messages: list[Abort | Room], data: st.DataObject
) -> None:
    """A stream keeps no boundaries: each message is read once, when its last byte is there."""
    raw = b"".join(framed(encode(message)) for message in messages)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=4).map(sorted))
    ours, theirs = Pipe()
    got = []
    with closing(Channel(ours)) as channel, theirs:
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            for at in range(start, end, 1 << 15):
                os.write(theirs.fileno(), raw[at : min(end, at + (1 << 15))])
                while (message := channel.receive()) is not None:
                    got.append(message)
    assert got == messages


def test_part_of_a_message_blocks_nobody(ends: tuple[Channel, Connection]) -> None:
    """A peer that stops in the middle of a message is silent, and its message is not lost."""
    channel, peer = ends
    frame = framed(encode(Beat()))
    os.write(peer.fileno(), frame[:5])
    assert channel.receive() is None
    os.write(peer.fileno(), frame[5:])
    assert channel.receive() == Beat()


@pytest.mark.parametrize(
    "raw", [b"GET / HTTP/1.1\r\n\r\n", framed(b"\x93\x01\x02\x03"), b"\xff" * 64]
)
def test_another_protocol_is_told_at_once(ends: tuple[Channel, Connection], raw: bytes) -> None:
    """No memory is set aside for its lengths, and what follows is ignored until it closes."""
    channel, peer = ends
    os.write(peer.fileno(), raw)
    with pytest.raises(PeerLost, match="talks another format"):
        channel.receive()
    os.write(peer.fileno(), framed(encode(Beat())))
    assert channel.receive() is None
    assert channel.is_open
    peer.close()
    with pytest.raises(PeerLost, match="its end of the channel is closed"):
        channel.receive()
    assert not channel.is_open


def test_a_peer_that_reads_nothing_is_told_by_the_next_keep(
    ends: tuple[Channel, Connection],
) -> None:
    """Nothing is sent behind a message that was cut short, for the peer would misread it."""
    channel, peer = ends
    while not channel._mute:
        channel.tell(Room(attempt=1, pages=tuple(range(9999))))
    with pytest.raises(PeerLost, match="does not listen"):
        channel.keep()
    reader = Channel(peer, SILENCE_S)
    while reader.receive() is not None:
        pass
    with pytest.raises(PeerLost):
        channel.send(Beat())
    assert reader.receive() is None


def test_only_the_peers_own_silence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was paused itself could not hear."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ours, theirs = Pipe()
    with closing(Channel(ours, 20.0)) as channel, theirs:
        for _ in range(3):
            now[0] += 300.0
            channel.keep()
        for _ in range(7):  # behind 12 s: each pause counts as one interval between two beats
            now[0] += 1.0
            channel.keep()
        now[0] += 2.0
        with pytest.raises(PeerLost, match=r"said nothing for 21\.0 s"):
            channel.keep()


def test_an_end_that_hung_up_says_nothing_and_still_hears(
    ends: tuple[Channel, Connection],
) -> None:
    """The peer sees the end of the stream at once, and may answer."""
    channel, peer = ends
    channel.hang_up("enough")
    with pytest.raises(PeerLost, match="enough"):
        channel.send(Beat())
    assert channel.is_open
    with pytest.raises(EOFError):
        peer.recv_bytes()
    peer.send_bytes(encode(Ended(attempt=1, reason="over")))
    assert channel.receive() == Ended(attempt=1, reason="over")


@pytest.mark.parametrize(
    "end", [lambda channel: channel.hang_up("enough"), Channel.close], ids=["hang_up", "close"]
)
def test_a_sender_to_a_peer_that_reads_nothing_never_waits(
    end: Callable[[Channel], None],
) -> None:
    """Its messages are kept; the end of the channel waits for the peer a moment, and no sender with it."""
    ours, theirs = Pipe()
    channel, told = Channel(ours, 60.0), list[str]()
    begun = threading.Semaphore(0)

    def send() -> None:
        try:
            while True:
                begun.release()
                channel.send(Room(attempt=1, pages=tuple(range(9999))))
                time.sleep(0.01)
        except PeerLost as error:
            told.append(str(error))

    with closing(channel), theirs:
        senders = [threading.Thread(target=send, daemon=True) for _ in range(2)]
        for sender in senders:
            sender.start()
        for _ in range(50):  # the socket has room for seven
            assert begun.acquire(timeout=10)
        began = time.monotonic()
        end(channel)
        for sender in senders:
            sender.join(10)
        assert len(told) == 2
        assert time.monotonic() - began < 10


def test_what_the_peer_had_no_room_for_arrives_in_order_when_it_reads(
    ends: tuple[Channel, Connection],
) -> None:
    """Whoever receives writes on; so does the end of the channel."""
    channel, peer = ends
    reader = Channel(peer, SILENCE_S)
    said = [Room(attempt=number, pages=tuple(range(9999))) for number in range(100)]
    for message in said:
        channel.send(message)
    assert channel._frames.unsent
    got, closer = list[object](), threading.Thread(target=channel.hang_up, args=("enough",))
    while len(got) < 50:
        assert channel.receive() is None
        got += [message for message in [reader.receive(0.01)] if message is not None]
    closer.start()
    while reader.is_open:
        with suppress(PeerLost):
            got += [message for message in [reader.receive(0.01)] if message is not None]
    closer.join(10)
    assert got == said


def test_a_peer_that_talks_nonsense_keeps_its_pages_held_until_it_is_gone(handmade: Pair) -> None:
    """It lives, so its write may still land."""
    receiving = handmade.decode.expect("r", handmade.alloc(2), 8)
    handmade.prefill.send("r", handmade.alloc(2), 8)
    handmade.settle()
    for _ in range(3):
        os.write(handmade.ends[0].fileno(), framed(b"\x93\x01\x02\x03"))
    for _ in range(4):
        handmade.decode.step()
    assert "talks another format" in receiving.reason
    assert handmade.decode.quarantined.tolist() == receiving.pages.tolist()
    handmade.ends[0].close()
    handmade.decode.step()
    assert not handmade.decode.quarantined.size


def test_a_room_that_is_said_twice_is_written_once(handmade: Pair) -> None:
    """A second transfer would be nobody's to release."""
    handmade.decode.expect("r", handmade.alloc(2), 8)
    sending = handmade.prefill.send("r", handmade.alloc(2), 8)
    handmade.settle()
    handmade.decode.link.channel.send(Room(attempt=sending.attempt, pages=(0, 1)))
    handmade.settle()
    assert len(handmade.prefill.link.wire.writes) == 1  # type: ignore[attr-defined]


def test_offers_of_a_lost_peer_are_refused(handmade: Pair) -> None:
    """A decode that gave up says so at once, not by its silence."""
    handmade.decode._lose("out of order")
    handmade.prefill.step()
    assert "its end of the channel is closed" in handmade.prefill.lost
    handmade.decode.link.channel.tell(Offer(attempt=1, request="r", pages=1, tokens=4))


@pytest.mark.parametrize("closes", [False, True])
def test_a_signals_handler_may_send_in_the_middle_of_a_send(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Its message follows the one under way, which is written once; if it closes, nothing follows."""
    ours, theirs = Pipe()
    channel, peer, told = Channel(ours, SILENCE_S), Channel(theirs, SILENCE_S), list[str]()

    def handled(descriptor: int, some: memoryview) -> int:
        sent = os.write(descriptor, some)
        if not told:
            told.append("a signal")
            channel.send(Abort(attempt=2, reason="handler"))
            if closes:
                channel.close()
        return sent

    with closing(channel), closing(peer):
        with monkeypatch.context() as patch:
            patch.setattr(frames, "os", SimpleNamespace(write=handled))
            channel.send(Abort(attempt=1, reason="thread"))
        assert peer.receive(1.0) == Abort(attempt=1, reason="thread")
        if not closes:
            assert peer.receive(1.0) == Abort(attempt=2, reason="handler")
            channel.keep()
            assert peer.receive() is None
