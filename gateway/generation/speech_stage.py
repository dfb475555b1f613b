"""How the answer to a request is taken apart: by the request, and by what its model writes."""

import hashlib
from collections.abc import Sequence

from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import Conversation, GenerationRequest
from gateway.generation.wire import Header
from gateway.speech.calls import CallReader
from gateway.speech.forms import FORMS
from gateway.speech.reasoning import ReasoningCount, ReasoningReader, ReasoningTally
from gateway.speech.speech import PlainReader, Reader, Speech
from gateway.speech.tools import ToolChoice

_ID_CHARS = 24


def speech_of(
    header: Header, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
) -> Speech:
    """A new one for each reading of an answer, from what a wire is made of. Two of the same answer read the same."""
    dialect, use = model.text.dialect, request.tools

    def answer_reader(choice: int) -> Reader:
        if use is None or not use.shown:
            return PlainReader()
        form = None if use.choice is ToolChoice.REQUIRED else FORMS[dialect.call_form]
        names = {tool.name for tool in use.tools}
        return CallReader(form, names, use.most_calls, lambda index: _call_id(header.id, choice, index))

    def reader(choice: int) -> Reader:
        answer = answer_reader(choice)
        if dialect.reasoning is None:
            return answer
        return ReasoningReader(dialect.reasoning, _reasons_already(request, model, prompts, choice), answer)

    return Speech(reader)


def reasoning_of(request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]) -> ReasoningTally:
    """Counts what of an answer its reader takes for reasoning. Plain prompts are gone on with, and have none."""
    markers, text = model.text.dialect.reasoning, model.text
    if markers is None or not isinstance(request.prompts[0], Conversation):
        return ReasoningTally(None)
    return ReasoningTally(
        lambda choice: ReasoningCount(
            markers, _reasons_already(request, model, prompts, choice), text.tokenizer.token_bytes
        )
    )


def _reasons_already(
    request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt], choice: int
) -> bool:
    prompt = prompts[choice // request.params.n].token_ids
    return model.text.dialect.reasons_already(model.text.tokenizer, prompt)


def _call_id(answer_id: str, choice: int, index: int) -> str:
    """The same whoever reads the answer: a session remembers what its client is told."""
    return "call_" + hashlib.sha256(f"{answer_id}/{choice}/{index}".encode()).hexdigest()[:_ID_CHARS]
