"""POST /v1/chat/completions."""

from collections.abc import Sequence

from gateway.api.chat_schema import parse_chat
from gateway.api.chat_wire import ChatWire
from gateway.api.endpoint import Operation
from gateway.api.engine_client import ServedModel
from gateway.api.generation import GenerationRequest
from gateway.api.prepare import PreparedPrompt
from gateway.api.wire import Header, Wire


def _wire(header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> Wire:
    return ChatWire(
        header,
        model.text.tokenizer,
        logprobs=request.params.logprobs is not None,
        include_usage=request.include_usage,
    )


CHAT = Operation("chat", "chatcmpl", parse_chat, _wire)
