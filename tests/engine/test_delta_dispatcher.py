"""A step's deltas reach each sink in one call, or wait for the next step where that is better."""

import pytest

from engine.request import FinishReason, TokenDelta
from engine.runtime.delta_dispatcher import DeltaDispatcher


class Reader:
    """Takes deltas, as a method: a new object whenever it is asked for."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def take(self, deltas: list[TokenDelta]) -> None:
        self.calls.append([delta.request_id for delta in deltas])


def test_a_sink_gets_its_share_in_one_call() -> None:
    one, other, dispatcher = Reader(), Reader(), DeltaDispatcher()
    dispatcher.sinks = {"a": one.take, "b": other.take, "c": one.take}
    dispatcher.deliver([TokenDelta("a"), TokenDelta("b"), TokenDelta("c")])
    assert one.calls == [["a", "c"]]
    assert other.calls == [["b"]]


def test_what_is_held_comes_once_and_in_order() -> None:
    reader, dispatcher = Reader(), DeltaDispatcher()
    dispatcher.sinks = {"a": reader.take, "b": reader.take}
    dispatcher.hold([TokenDelta("a")])
    dispatcher.hold([TokenDelta("b"), TokenDelta("a")])
    assert reader.calls == []
    dispatcher.release()
    dispatcher.release()
    assert reader.calls == [["a", "b", "a"]]


def test_the_last_delta_ends_it() -> None:
    reader, dispatcher = Reader(), DeltaDispatcher()
    dispatcher.sinks = {"a": reader.take, "b": reader.take}
    dispatcher.hold([TokenDelta("a", finish_reason=FinishReason.STOP), TokenDelta("b")])
    assert set(dispatcher.sinks) == {"a", "b"}, "it has not been handed over"
    dispatcher.release()
    assert set(dispatcher.sinks) == {"b"}
    with pytest.raises(KeyError):
        dispatcher.deliver([TokenDelta("a")])
