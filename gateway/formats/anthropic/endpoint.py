"""POST /v1/messages."""

from collections.abc import Sequence

from gateway.formats.anthropic.schema import parse_messages
from gateway.formats.anthropic.wire import MessagesWire, Terms
from gateway.generation.endpoint import Asked, Operation
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.speech_stage import speech_of
from gateway.generation.wire import Header, Wire
from gateway.http.fields import Fields


def _parse(fields: Fields) -> Asked:
    asked = parse_messages(fields)

    def wire(header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> Wire:
        [prompt] = prompts
        terms = Terms(
            prompt_tokens=len(prompt.token_ids),
            stop_sequences=request.params.stop,
            is_cut=prompt.max_tokens < asked.max_tokens,
            shows_thinking=asked.shows_thinking,
        )
        return MessagesWire(header, speech_of(header, request, model, prompts), terms)

    return Asked(asked.request, wire)


MESSAGES = Operation("chat", "msg_", _parse)
