"""POST /v1/completions."""

from collections.abc import Sequence

from gateway.api.completion_schema import parse_completion
from gateway.api.completion_wire import CompletionWire, Told
from gateway.api.endpoint import Asked, Operation
from gateway.api.engine_client import ServedModel
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.prepare import PreparedPrompt
from gateway.api.wire import Header, Wire


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
