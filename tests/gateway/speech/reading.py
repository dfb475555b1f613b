"""Texts with calls in each form, and what is read in them."""

import itertools

from engine.request import FinishReason, TextDelta
from engine.text.dialect import CallForm
from engine.text.reasoning_span import ReasoningTracker
from gateway.speech.call_forms import FORMS
from gateway.speech.calls import CallReader
from gateway.speech.output_parser import Reader
from gateway.speech.pieces import Call, ParsedMessage, Piece
from gateway.speech.reasoning import ReasoningReader

NAMES = {"weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, "time": {}}
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def glm(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"


def xml(name: str, *parameters: tuple[str, str]) -> str:
    """A function with its parameters, as Qwen3-Coder's chat template writes it."""
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<function={name}>\n{written}</function>"


def v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def reader(form: CallForm | None, most: int | None = None) -> CallReader:
    return CallReader(None if form is None else FORMS[form], NAMES, most, lambda index: f"call_{index}")


def pieces_of(by: Reader, parts: list[str], reason: FinishReason = FinishReason.STOP) -> list[list[Piece]]:
    """Pieces that the reader returns for each part; the last part ends the answer."""
    last = len(parts) - 1
    pieces = []
    for i, part in enumerate(parts):
        if isinstance(by, ReasoningReader):
            by.tracker.add([ord(char) for char in part])
        pieces.append(by.read(TextDelta(0, part, finish_reason=reason if i == last else None)))
    return pieces


def thinking(opened: bool, answer: CallReader) -> ReasoningReader:
    """Each character is a token."""
    tracker = ReasoningTracker("<think>", "</think>", None, lambda char: chr(char).encode(), opened=opened)
    return ReasoningReader(tracker, answer)


def spoken(by: Reader, *parts: str) -> ParsedMessage:
    return ParsedMessage.of(itertools.chain.from_iterable(pieces_of(by, list(parts))))


def called(*calls: tuple[str, str], text: str | None = None) -> ParsedMessage:
    return ParsedMessage(text, None, [Call(f"call_{i}", name, arguments) for i, (name, arguments) in enumerate(calls)])


OSLO = ("weather", '{"city": "Oslo"}')
LATE = ("time", "{}")
