"""The parser of a request's answer: by what the request allows, and by how its model writes."""

import hashlib
from collections.abc import Sequence

from engine.text.dialect import CHANNEL_MARKERS
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.remote_prompt import RemoteText
from gateway.generation.request import Conversation, GenerationRequest
from gateway.speech.call_forms import FORMS
from gateway.speech.calls import CallReader
from gateway.speech.harmony import ChannelTracker, HarmonyReader
from gateway.speech.output_parser import ChoiceParser, OutputParser, PlainReader, Reader
from gateway.speech.reasoning import ReasoningReader
from gateway.speech.structured import StructuredParser
from gateway.speech.tools import ToolChoice

_ID_CHARS = 24


def output_parser(
    answer_id: str, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
) -> OutputParser:
    """Answers to conversations have reasoning and calls of tools; those to plain prompts are text."""
    if isinstance(model.text, RemoteText):
        return StructuredParser()
    if not isinstance(request.prompts[0], Conversation):
        return OutputParser()
    text, use = model.text, request.tools

    def answer_reader(choice: int) -> Reader:
        if use is None or not use.shown:
            return PlainReader()
        form = None
        if use.choice is not ToolChoice.REQUIRED:
            form = FORMS.get(text.dialect.call_form)
            if form is None:
                return PlainReader()  # calls are messages in channels, which a grammar rules out
        names = {tool.name: tool.parameters for tool in use.tools}
        return CallReader(form, names, use.most_calls, lambda index: _call_id(answer_id, choice, index))

    def channel_parser(choice: int) -> ChoiceParser:
        ids = {marker: text.tokenizer.special_texts[marker] for marker in CHANNEL_MARKERS}
        tracker = ChannelTracker(ids, text.tokenizer.token_bytes)
        names, most = (
            ((), None) if use is None or not use.shown else ({tool.name for tool in use.tools}, use.most_calls)
        )
        return ChoiceParser(
            HarmonyReader(tracker, names, most, lambda index: _call_id(answer_id, choice, index)), tracker
        )

    def choice_parser(choice: int) -> ChoiceParser:
        answer, prompt = answer_reader(choice), prompts[choice // request.params.n]
        if text.dialect.writes_channels and prompt.params.grammar is None:
            return channel_parser(choice)
        tracker = text.dialect.reasoning_tracker(
            text.tokenizer, prompt.token_ids, has_grammar=prompt.params.grammar is not None
        )
        if tracker is None:
            return ChoiceParser(answer)
        return ChoiceParser(ReasoningReader(tracker, answer), tracker)

    return OutputParser(choice_parser)


def _call_id(answer_id: str, choice: int, index: int) -> str:
    """Depends on the answer and the place of the call in it alone."""
    return "call_" + hashlib.sha256(f"{answer_id}/{choice}/{index}".encode()).hexdigest()[:_ID_CHARS]
