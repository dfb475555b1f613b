"""What is remembered of a conversation, and how it is spelt in the store."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

import orjson

from gateway.sessions.errors import UnreadableHistory

Message = Mapping[str, Any]
"""One message, as the chat template takes it."""

MAX_VALUE_BYTES = 64 * 1024**2
"""What a value may unfold to, whoever wrote it: over any bound that can be set, and what a process can take."""

_FORM = b"\x01"
"""The first byte of a value: zlib of JSON. Another form has another byte."""
_LEVEL = 1
"""zlib's quickest: a value is written while its client waits."""
_SYSTEM_ROLES = ("system", "developer")
_SUMMARY_HEADING = "Summary of the earlier conversation, which is not shown any more:"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation so far.

    `system` is its system prompt: messages of the system or developer that stand first. `messages` are what is kept
    of the rest, oldest first, whole turns only: a turn begins with a message of the user. `dropped_turns` came before
    them and are gone; `summary` is what a model wrote of them, if one did.
    """

    system: tuple[Message, ...] = ()
    messages: tuple[Message, ...] = ()
    dropped_turns: int = 0
    summary: str | None = None

    def with_messages(self, new: Sequence[Message]) -> "History":
        """With messages that the client sends. A system prompt among them, in front, takes the place of the former."""
        system = tuple(takewhile(lambda message: message["role"] in _SYSTEM_ROLES, new))
        return replace(self, system=system or self.system, messages=(*self.messages, *new[len(system) :]))

    def with_answer(self, answer: Message) -> "History":
        return replace(self, messages=(*self.messages, answer))

    def without(self, turns: int, summary: str | None = None) -> "History":
        """Without the oldest turns. A new summary stands for them and for what the former one stood for; without a new
        one, the former stays."""
        gone = sum(map(len, self.turns[:turns]))
        return replace(
            self,
            messages=self.messages[gone:],
            dropped_turns=self.dropped_turns + turns,
            summary=self.summary if summary is None else summary,
        )

    @property
    def turns(self) -> tuple[tuple[Message, ...], ...]:
        """The messages by turn. What stands before the first message of the user belongs to the first turn, and so do
        several messages of the user in a row to one."""
        turns: list[list[Message]] = []
        for position, message in enumerate(self.messages):
            follows_user = position > 0 and self.messages[position - 1]["role"] == "user"
            if not turns or (message["role"] == "user" and not follows_user and _has_user(turns[-1])):
                turns.append([])
            turns[-1].append(message)
        return tuple(map(tuple, turns))

    @property
    def prompt(self) -> tuple[Message, ...]:
        """All messages, in the order that a template wants: the summary is part of the system prompt."""
        return (*_with_summary(self.system, self.summary), *self.messages)

    def to_json(self) -> bytes:
        return orjson.dumps({name: getattr(self, name) for name in _MEMBERS})

    @classmethod
    def from_json(cls, data: bytes) -> "History":
        """Raises: UnreadableHistory."""
        try:
            stated = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise UnreadableHistory("it is not JSON") from None
        if not isinstance(stated, dict) or stated.keys() != _MEMBERS:
            raise UnreadableHistory("its members are not known")
        if not (
            _are_messages(stated["system"])
            and _are_messages(stated["messages"])
            and type(stated["dropped_turns"]) is int
            and isinstance(stated["summary"], str | None)
        ):
            raise UnreadableHistory("a member is of a wrong type")
        stated |= {"system": tuple(stated["system"]), "messages": tuple(stated["messages"])}
        return cls(**stated)


def pack(data: bytes) -> bytes:
    """A history's JSON as the store keeps it."""
    return _FORM + zlib.compress(data, _LEVEL)


def unpack(value: bytes) -> bytes:
    """
    Raises:
        UnreadableHistory: a value that no version of this program wrote, or only a newer one.
    """
    if value[:1] != _FORM:
        raise UnreadableHistory("its form is not known")
    try:
        return zlib.decompressobj().decompress(value[1:], MAX_VALUE_BYTES)
    except zlib.error:
        raise UnreadableHistory("it cannot be decompressed") from None


_MEMBERS = {each.name for each in fields(History)}


def _has_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message for message in value
    )


def _with_summary(system: tuple[Message, ...], summary: str | None) -> tuple[Message, ...]:
    """Most templates know one system message, and it stands first: the summary goes to the end of the last of them."""
    if summary is None:
        return system
    text = f"{_SUMMARY_HEADING}\n{summary}"
    if not system:
        return ({"role": "system", "content": text},)
    *before, last = system
    content = last["content"]
    if isinstance(content, list):
        return (*before, {**last, "content": [*content, {"type": "text", "text": text}]})
    return (*before, {**last, "content": f"{content}\n\n{text}"})
