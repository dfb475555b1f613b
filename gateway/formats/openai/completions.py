"""POST /v1/completions."""

from collections.abc import Sequence

from gateway.formats.openai.completion_formatter import CompletionFormatter, EchoedPrompt
from gateway.formats.openai.completion_schema import parse_completion
from gateway.generation.endpoint import Operation, ParsedBody
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseFormatter, ResponseMeta
from gateway.http.fields import Fields


def _formatter(
    meta: ResponseMeta, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
) -> ResponseFormatter:
    return CompletionFormatter(
        meta,
        model.text.tokenizer,
        request,
        [EchoedPrompt(prompt.token_ids, prompt.echo) for prompt in prompts],
    )


def _parse(fields: Fields) -> ParsedBody:
    return ParsedBody(parse_completion(fields), _formatter)


COMPLETIONS = Operation("text_completion", "cmpl-", _parse)
