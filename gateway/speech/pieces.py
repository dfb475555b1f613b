"""The parts of an answer, in the order in which they are said, and a whole answer made of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """Goes on with what the reader sees."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Goes on with what the model says to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a declared tool. Calls of one choice are numbered from 0; arguments of the same number follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Goes on with a call's arguments: all of them together are one JSON object."""

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
    """A whole answer. `text` and `reasoning` are None where none was said."""

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
