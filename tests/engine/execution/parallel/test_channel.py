"""Frames between ranks, and the end of their connection."""

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.parallel.channel import Call, Channel, ChannelEnded, Frame


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


@given(st.lists(st.tuples(st.sampled_from(Call), st.integers(0, 9), st.lists(st.integers()), st.binary()), max_size=8))
def test_frames_arrive_in_order(
    frames: list[tuple[Call, int, list[int], bytes]],
) -> None:
    one, other = map(Channel, socket.socketpair())
    for call, model, words, data in frames:
        numbers = np.array([word % 2**63 for word in words], dtype=np.int64)
        one.send(Frame(call, model, numbers, data).encoded())
    for call, model, words, data in frames:
        frame = other.receive()
        assert (frame.call, frame.model, frame.data) == (call, model, data)
        assert frame.words.tolist() == [word % 2**63 for word in words]
    one.close()
    with pytest.raises(ChannelEnded):
        other.receive()
    other.close()


def test_a_large_frame_is_received_whole(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    words, data = np.arange(300_000), bytes(range(256)) * 5000
    thread = threading.Thread(target=one.send, args=(Frame(Call.PUT_ADAPTER, 3, words, data).encoded(),))
    thread.start()
    frame = other.receive()
    thread.join(10)
    assert (frame.call, frame.model, frame.data) == (Call.PUT_ADAPTER, 3, data)
    np.testing.assert_array_equal(frame.words, words)


def test_closing_ends_a_wait_on_either_side(pair: tuple[Channel, Channel]) -> None:
    for waiting in pair:
        ended = threading.Event()

        def wait(channel: Channel = waiting, ended: threading.Event = ended) -> None:
            with pytest.raises(ChannelEnded):
                channel.receive()
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        pair[0].close()
        assert ended.wait(10)


def test_a_side_that_reads_nothing_is_given_up() -> None:
    mine, theirs = socket.socketpair()
    mine.settimeout(0.1)
    channel = Channel(mine)
    frame = Frame(Call.PUT_ADAPTER, data=bytes(1 << 20)).encoded()
    with pytest.raises(ChannelEnded):
        for _ in range(100):
            channel.send(frame)
    channel.try_send(Frame(Call.PING).encoded())  # does not block
    channel.close()
    theirs.close()
