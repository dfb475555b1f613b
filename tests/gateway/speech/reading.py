"""Texts with calls in each form, and what is read in them."""

import itertools
import json

from engine.request import FinishReason, TextDelta
from engine.text.dialect import CallForm, Markers
from engine.text.reasoning_span import ReasoningTracker
from gateway.speech.call_forms import FORMS
from gateway.speech.calls import CallReader
from gateway.speech.output_parser import Reader
from gateway.speech.pieces import Call, ParsedMessage, Piece
from gateway.speech.reasoning import ReasoningReader

NAMES = {"weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, "time": {}}
THINK = Markers("<think>", "</think>")
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


def gemma(value: object, *, quoted_keys: bool = False) -> str:
    """A value as Gemma 4's chat template writes it."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        members = (
            f"{gemma(key) if quoted_keys else key}:{gemma(each, quoted_keys=quoted_keys)}"
            for key, each in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma(each, quoted_keys=quoted_keys) for each in value) + "]"
    return json.dumps(value)


def gemma_call(name: str, arguments: object, *, quoted_keys: bool = False) -> str:
    return f"<|tool_call>call:{name}{gemma(arguments, quoted_keys=quoted_keys)}<tool_call|>"


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


def thinking(opened: bool, answer: CallReader, markers: Markers = THINK) -> ReasoningReader:
    """Each character is a token."""
    begin, end = markers.begin, markers.end
    tracker = ReasoningTracker(begin, end, None, lambda char: chr(char).encode(), opened=opened, label=markers.label)
    return ReasoningReader(tracker, answer)


def spoken(by: Reader, *parts: str) -> ParsedMessage:
    return ParsedMessage.of(itertools.chain.from_iterable(pieces_of(by, list(parts))))


def called(*calls: tuple[str, str], text: str | None = None) -> ParsedMessage:
    return ParsedMessage(text, None, [Call(f"call_{i}", name, arguments) for i, (name, arguments) in enumerate(calls)])


OSLO = ("weather", '{"city": "Oslo"}')
LATE = ("time", "{}")
