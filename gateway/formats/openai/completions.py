"""POST /v1/completions."""

from collections.abc import Sequence

from gateway.formats.openai.completion_schema import parse_completion
from gateway.formats.openai.completion_wire import CompletionWire, Told
from gateway.generation.endpoint import Asked, Operation
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.wire import Header, Wire
from gateway.http.fields import Fields


def _wire(header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> Wire:
    return CompletionWire(
        header,
        model.text.tokenizer,
        request,
        [Told(prompt.token_ids, prompt.echo) for prompt in prompts],
    )


def _parse(fields: Fields) -> Asked:
    return Asked(parse_completion(fields), _wire)


COMPLETIONS = Operation("text_completion", "cmpl-", _parse)
