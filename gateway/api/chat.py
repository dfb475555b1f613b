"""POST /v1/chat/completions."""

from collections.abc import Sequence

from gateway.api.chat_schema import parse_chat
from gateway.api.chat_wire import ChatWire
from gateway.api.endpoint import Asked, Operation
from gateway.api.engine_client import ServedModel
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.prepare import PreparedPrompt
from gateway.api.speech_stage import speech_of
from gateway.api.wire import Header, Wire


def _wire(header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> Wire:
    return ChatWire(
        header,
        model.text.tokenizer,
        speech_of(header, request, model, prompts),
        request,
        prompts[0],
    )


def _parse(fields: Fields) -> Asked:
    return Asked(parse_chat(fields), _wire)


CHAT = Operation("chat", "chatcmpl-", _parse)
