"""POST /v1/completions."""

from collections.abc import Sequence

from gateway.api.completion_schema import parse_completion
from gateway.api.completion_wire import CompletionWire, Echo
from gateway.api.endpoint import Operation
from gateway.api.engine_client import ServedModel
from gateway.api.generation import GenerationRequest
from gateway.api.prepare import PreparedPrompt
from gateway.api.wire import Header, Wire


def _wire(header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> Wire:
    return CompletionWire(
        header,
        model.text.tokenizer,
        echoes=[Echo(prompt.echo, prompt.token_ids) for prompt in prompts if prompt.echo is not None],
        choices_each=request.params.n,
        logprobs=request.params.logprobs is not None,
        include_usage=request.include_usage,
    )


COMPLETIONS = Operation("text_completion", "cmpl", parse_completion, _wire)
