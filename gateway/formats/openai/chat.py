"""POST /v1/chat/completions."""

from collections.abc import Sequence

from gateway.formats.openai.chat_schema import parse_chat
from gateway.formats.openai.chat_wire import ChatWire
from gateway.generation.endpoint import Asked, Operation
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.speech_stage import speech_of
from gateway.generation.wire import Header, Wire
from gateway.http.fields import Fields


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
