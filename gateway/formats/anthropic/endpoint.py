"""POST /v1/messages."""

from collections.abc import Sequence

from gateway.formats.anthropic.formatter import MessagesFormatter, Terms
from gateway.formats.anthropic.schema import parse_messages
from gateway.generation.endpoint import Operation, ParsedBody
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseFormatter, ResponseMeta
from gateway.http.fields import Fields


def _parse(fields: Fields) -> ParsedBody:
    asked = parse_messages(fields)

    def formatter(
        meta: ResponseMeta, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
    ) -> ResponseFormatter:
        [prompt] = prompts
        terms = Terms(
            prompt_tokens=len(prompt.token_ids),
            stop_sequences=request.params.stop,
            is_cut=prompt.max_tokens < asked.max_tokens,
            shows_thinking=asked.shows_thinking,
        )
        return MessagesFormatter(meta, terms)

    return ParsedBody(asked.request, formatter)


MESSAGES = Operation("chat", "msg_", _parse)
