"""POST /v1/messages."""

from collections.abc import Sequence

from gateway.api.endpoint import Asked, Operation
from gateway.api.engine_client import ServedModel
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.messages.schema import parse_messages
from gateway.api.messages.wire import MessagesWire, Terms
from gateway.api.prepare import PreparedPrompt
from gateway.api.speech_stage import speech_of
from gateway.api.wire import Header, Wire


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
