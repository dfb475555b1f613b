"""The stored conversation and its encoding in the store."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

import orjson

from gateway.sessions.errors import UnreadableHistory

Message = Mapping[str, Any]
"""One message in the form of the chat template."""

MAX_VALUE_BYTES = 64 * 1024**2
"""Bound of a decompressed value in bytes, by any writer: above every bound that can be set, and within a process'
memory."""

_FORM = b"\x01"
"""First byte of a value: zlib of JSON. Another format has another byte."""
_LEVEL = 1
"""zlib's fastest level, as a client waits for the write."""
_SYSTEM_ROLES = ("system", "developer")
_SUMMARY_HEADING = "Summary of the earlier conversation, which is not shown any more:"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A conversation.

    `system`: its leading system and developer messages. `messages`: the kept part of the rest, oldest first, in whole
    turns; a turn begins with a user message. `dropped_turns`: number of turns before them that are no longer kept.
    `summary`: a model's summary of those; None: there is none.
    """

    system: tuple[Message, ...] = ()
    messages: tuple[Message, ...] = ()
    dropped_turns: int = 0
    summary: str | None = None

    def with_messages(self, new: Sequence[Message]) -> "History":
        """The history with the client's new messages. A system prompt in front of them replaces the former one."""
        system = tuple(takewhile(lambda message: message["role"] in _SYSTEM_ROLES, new))
        return replace(self, system=system or self.system, messages=(*self.messages, *new[len(system) :]))

    def with_answer(self, answer: Message) -> "History":
        """The history with the assistant's answer."""
        return replace(self, messages=(*self.messages, answer))

    def without(self, turns: int, summary: str | None = None) -> "History":
        """The history without its oldest turns. A new `summary` covers them and the former summary; None keeps the
        former one."""
        gone = sum(map(len, self.turns[:turns]))
        return replace(
            self,
            messages=self.messages[gone:],
            dropped_turns=self.dropped_turns + turns,
            summary=self.summary if summary is None else summary,
        )

    @property
    def turns(self) -> tuple[tuple[Message, ...], ...]:
        """The messages by turn. Messages before the first user message belong to the first turn, and consecutive user
        messages to one turn."""
        turns: list[list[Message]] = []
        for position, message in enumerate(self.messages):
            follows_user = position > 0 and self.messages[position - 1]["role"] == "user"
            if not turns or (message["role"] == "user" and not follows_user and _has_user(turns[-1])):
                turns.append([])
            turns[-1].append(message)
        return tuple(map(tuple, turns))

    @property
    def prompt(self) -> tuple[Message, ...]:
        """All messages in the order of a template, with the summary in the system prompt."""
        return (*_with_summary(self.system, self.summary), *self.messages)

    def to_json(self) -> bytes:
        """The JSON of the history, for `from_json`."""
        return orjson.dumps({name: getattr(self, name) for name in _MEMBERS})

    @classmethod
    def from_json(cls, data: bytes) -> "History":
        """Parse the JSON of a history. Raises UnreadableHistory."""
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
    """Compress a history's JSON for the store."""
    return _FORM + zlib.compress(data, _LEVEL)


def unpack(value: bytes) -> bytes:
    """The JSON of a stored value.

    Raises:
        UnreadableHistory: no version of this program wrote the value, or a newer one did.
    """
    if value[:1] != _FORM:
        raise UnreadableHistory("its form is not known")
    try:
        return zlib.decompressobj().decompress(value[1:], MAX_VALUE_BYTES)
    except zlib.error:
        raise UnreadableHistory("it cannot be decompressed") from None


_MEMBERS = {field.name for field in fields(History)}


def _has_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message for message in value
    )


def _with_summary(system: tuple[Message, ...], summary: str | None) -> tuple[Message, ...]:
    """Most templates accept one leading system message, so the summary is appended to the last of them."""
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
