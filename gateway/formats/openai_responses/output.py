"""Builds a response's output: pieces of the answer become items, and each change is a stream event.

One item is open at a time; the next one closes it. Its events are `output_item.added`, those of its one part or of its
arguments, and `output_item.done` with the whole item. Invariant: the deltas add up to the whole item.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from gateway.formats.openai_responses.items import COMPLETED, INCOMPLETE, CallName, Item
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]

_IN_PROGRESS = "in_progress"
_NO_LOGPROBS: Logprobs = []


class Output:
    """The items of one answer. `new_id`: (prefix of the kind, index) -> item id. `names`: name in the prompt ->
    function as the client declared it."""

    def __init__(self, new_id: Callable[[str, int], str], names: Mapping[str, CallName]) -> None:
        self._new_id = new_id
        self._names = names
        self._open: _Message | _Reasoning | _Call | None = None
        self.items: list[Item] = []
        """Completed items."""
        self.ended = False

    def say(self, piece: Piece, logprobs: Logprobs = _NO_LOGPROBS) -> list[Event]:
        """Add a piece. Invariant: a call's arguments follow it directly. `logprobs`: of a text piece."""
        events: list[Event] = []
        match piece:
            case Text(text):
                if not isinstance(self._open, _Message):
                    events = self._close() + self._begin(_Message(*self._place("msg")))
                assert isinstance(self._open, _Message)
                events.append(self._open.delta(text, logprobs))
            case Reasoning(text):
                if not isinstance(self._open, _Reasoning):
                    events = self._close() + self._begin(_Reasoning(*self._place("rs")))
                assert isinstance(self._open, _Reasoning)
                events.append(self._open.delta(text))
            case CallBegun(number, id, name):
                events = self._close()
                events += self._begin(_Call(*self._place("fc"), number, id, self._names[name]))
            case CallArguments(number, text):
                assert isinstance(self._open, _Call)
                assert self._open.number == number, "arguments of a call that is not open"
                events.append(self._open.delta(text))
        return events

    def end(self, *, cut: bool) -> list[Event]:
        """Close the output. `cut`: the answer was cut off, so its last item is incomplete. An empty answer has one
        empty message."""
        events: list[Event] = []
        if self._open is None:
            events = self._begin(_Message(*self._place("msg")))
        self.ended = True
        return events + self._close(INCOMPLETE if cut else COMPLETED)

    def _place(self, prefix: str) -> tuple[str, int]:
        index = len(self.items)
        return self._new_id(prefix, index), index

    def _begin(self, item: "_Message | _Reasoning | _Call") -> list[Event]:
        self._open = item
        return item.begun()

    def _close(self, status: str = COMPLETED) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self.items.append(item.whole(status))
        return item.ended(self.items[-1])


class _Growing:
    """An open item."""

    def __init__(self, id: str, index: int) -> None:
        self._id = id
        self._index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self._id, "output_index": self._index, **members}

    def _item_event(self, kind: str, item: Item) -> Event:
        return {"type": f"response.output_item.{kind}", "output_index": self._index, "item": item}


class _OnePart(_Growing):
    """An item of one part: a message or reasoning. `members`: of the item, besides id, status and content.
    `done_members`: of the part, repeated in the `done` event."""

    members: ClassVar[Mapping[str, Any]]
    part_type: ClassVar[str]
    done_members: ClassVar[tuple[str, ...]]

    def begun(self) -> list[Event]:
        return [
            self._item_event("added", self._item(_IN_PROGRESS, [])),
            self._event("content_part.added", content_index=0, part=self._part()),
        ]

    def whole(self, status: str) -> Item:
        return self._item(status, [self._part()])

    def ended(self, whole: Item) -> list[Event]:
        [part] = whole["content"]
        return [
            self._event(f"{self.part_type}.done", content_index=0, **{name: part[name] for name in self.done_members}),
            self._event("content_part.done", content_index=0, part=part),
            self._item_event("done", whole),
        ]

    def _delta(self, text: str, **members: Any) -> Event:
        self._texts.append(text)
        return self._event(f"{self.part_type}.delta", content_index=0, delta=text, **members)

    def _part(self) -> dict[str, Any]:
        return {"type": self.part_type, "text": self.text}

    def _item(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {"id": self._id, "status": status, **self.members, "content": content}


class _Message(_OnePart):
    members = MappingProxyType({"type": "message", "role": "assistant"})
    part_type = "output_text"
    done_members = ("text", "logprobs")

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self._logprobs: Logprobs = []

    def delta(self, text: str, logprobs: Logprobs) -> Event:
        self._logprobs += logprobs
        return self._delta(text, logprobs=logprobs)

    def _part(self) -> dict[str, Any]:
        return super()._part() | {"annotations": [], "logprobs": list(self._logprobs)}


class _Reasoning(_OnePart):
    members = MappingProxyType({"type": "reasoning", "summary": ()})
    part_type = "reasoning_text"
    done_members = ("text",)

    def delta(self, text: str) -> Event:
        return self._delta(text)


class _Call(_Growing):
    def __init__(self, id: str, index: int, number: int, call_id: str, name: CallName) -> None:
        super().__init__(id, index)
        self.number = number
        self._call_id = call_id
        self._name = name

    def begun(self) -> list[Event]:
        return [self._item_event("added", self.whole(_IN_PROGRESS))]

    def delta(self, text: str) -> Event:
        self._texts.append(text)
        return self._event("function_call_arguments.delta", delta=text)

    def whole(self, status: str) -> Item:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            **self._name.members(),
            "arguments": self.text,
        }

    def ended(self, whole: Item) -> list[Event]:
        done = self._event("function_call_arguments.done", name=self._name.name, arguments=whole["arguments"])
        return [done, self._item_event("done", whole)]
