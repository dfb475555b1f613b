"""POST /v1/chat/completions."""

from collections.abc import Sequence

from gateway.formats.openai.chat_formatter import ChatFormatter
from gateway.formats.openai.chat_schema import parse_chat
from gateway.generation.endpoint import Operation, ParsedBody
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseFormatter, ResponseMeta
from gateway.http.fields import Fields


def _formatter(
    meta: ResponseMeta, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
) -> ResponseFormatter:
    return ChatFormatter(meta, model.text.tokenizer, request, prompts[0])


def _parse(fields: Fields) -> ParsedBody:
    return ParsedBody(parse_chat(fields), _formatter)


CHAT = Operation("chat", "chatcmpl-", _parse)
