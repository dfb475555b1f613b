"""The parts of an answer in order, and a whole answer made of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """More visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The start of a call of a declared tool. `index`: of the call in its choice, from 0. Its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments. Joined, they are one JSON object."""

    index: int
    text: str


Piece = Text | Reasoning | CallBegun | CallArguments


@dataclass(slots=True)
class Call:
    """A whole call."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedMessage:
    """A whole answer. `text` and `reasoning` are None where the answer has none."""

    text: str | None = None
    reasoning: str | None = None
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> "ParsedMessage":
        message = cls()
        for piece in pieces:
            match piece:
                case Text(text):
                    message.text = (message.text or "") + text
                case Reasoning(text):
                    message.reasoning = (message.reasoning or "") + text
                case CallBegun(_, id, name):
                    message.calls.append(Call(id, name))
                case CallArguments(index, text):
                    message.calls[index].arguments += text
        return message
