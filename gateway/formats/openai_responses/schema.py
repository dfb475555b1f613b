"""The body of POST /v1/responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import MAX_TOP_LOGPROBS, SamplingParams
from engine.sampling_defaults import SAMPLING_DEFAULTS
from gateway.formats.openai.chat_messages import EFFORTS
from gateway.formats.openai.hints import stated_hints, take_metadata
from gateway.formats.openai.sampling import MAX_TOKENS
from gateway.formats.openai.structured import read_format
from gateway.formats.openai_responses.items import CallName, Item, take_items
from gateway.formats.openai_responses.tools import take_tools
from gateway.generation.request import Conversation, GenerationRequest
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_string, unsupported_value

MAX_INCLUDES = 16

_LOGPROBS = "message.output_text.logprobs"
_NOTHING_ENCRYPTED = "reasoning.encrypted_content"
"""Requested by clients that store nothing, to send reasoning back. Reasoning is returned unencrypted."""

REFUSED: Mapping[str, tuple[object, ...]] = {
    "access_programs": (),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "truncation": ("disabled",),
}
"""Parameters of OpenAI's that are not supported, each with its neutral values."""


@dataclass(frozen=True, slots=True)
class Stated:
    """The parameters of a body that do not affect sampling. `items`: its input, including references. `echo`: members
    that the response repeats. `logprobs`: whether output text has log-probabilities."""

    items: Sequence[Item]
    instructions: str | None
    previous_response_id: str | None
    store: bool
    logprobs: bool
    reasoning_effort: str | None
    names: Mapping[str, CallName]
    """Name in the prompt -> function as the client declared it."""
    echo: Mapping[str, Any]
    unshown_tool_chars: int
    """Characters of declared tools that are stored with the response and are not part of the prompt."""

    def conversation(self, messages: tuple[Mapping[str, Any], ...]) -> Conversation:
        return Conversation(messages=messages, reasoning_effort=self.reasoning_effort, effort_param="reasoning.effort")


def parse_response(fields: Fields) -> tuple[GenerationRequest, Stated]:
    """Parse a body. The request has no prompt yet: `ResponseTurn` makes it from stored items and the input.

    Raises: APIError, InvalidParameter.
    """
    unstated = fields.unstated(SAMPLING_DEFAULTS)
    model = fields.required_string("model")
    items = take_items(fields)
    instructions = fields.string("instructions")
    previous = fields.string("previous_response_id")
    tools = take_tools(fields)
    grammar, text_echo = _take_text(fields)
    reasoning_echo = _take_reasoning(fields)
    logprobs, top_logprobs = _take_logprobs(fields)
    if logprobs and tools.use is not None:
        raise invalid("include", f"'{_LOGPROBS}' is not supported with tools.", "unsupported_parameter")
    max_tokens = fields.integer("max_output_tokens", 1, MAX_TOKENS)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        logprobs=top_logprobs if logprobs else None,
        grammar=grammar,
    )
    stream, store, service_tier = _take_stream(fields), fields.boolean("store", True), fields.string("service_tier")
    echo = {
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        # It bounds calls of server-side tools, of which there are none.
        "max_tool_calls": fields.integer("max_tool_calls", 1, MAX_TOKENS),
        "metadata": take_metadata(fields),
        "previous_response_id": previous,
        "reasoning": reasoning_echo,
        "store": store,
        "text": text_echo,
        "top_logprobs": top_logprobs,
        "truncation": "disabled",
        **stated_hints(fields),
        **tools.echo,
    }
    fields.nested("client_metadata")  # Codex's telemetry
    fields.finish(REFUSED)
    request = GenerationRequest(
        model=model,
        prompts=(),
        prompt_param="input",
        params=params,
        limit_param=None if max_tokens is None else "max_output_tokens",
        default_max_tokens=None,
        stream=stream,
        include_usage=True,
        service_tier=service_tier,
        tools=tools.use,
        unstated=unstated,
    )
    stated = Stated(
        items,
        instructions,
        previous,
        store,
        logprobs,
        reasoning_echo["effort"],
        tools.names,
        echo,
        tools.unshown_chars if store else 0,
    )
    return request, stated


def _take_stream(fields: Fields) -> bool:
    stream = fields.boolean("stream", False)
    options = fields.nested("stream_options")
    if options is not None:
        options.finish({"include_obfuscation": (False,)})
        if not stream:
            raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    return stream


def _take_text(fields: Fields) -> tuple[Any, dict[str, Any]]:
    """`text`: the grammar of the answer (None for free text) and the member that the response repeats."""
    given = fields.nested("text")
    echo: dict[str, Any] = {"format": {"type": "text"}, "verbosity": "medium"}
    if given is None:
        return None, echo
    stated, grammar = given.take("format"), None
    if stated is not None:
        grammar = read_format(Fields(stated, given.path("format")), nested=False)
        echo["format"] = stated
    given.finish({"verbosity": ("medium",)})
    return grammar, echo


def _take_reasoning(fields: Fields) -> dict[str, str | None]:
    """`reasoning`. Summaries are not made: reasoning is returned in full, which `auto` allows."""
    given = fields.nested("reasoning")
    if given is None:
        return {"effort": None, "summary": None}
    effort = given.string("effort")
    if effort not in (None, *EFFORTS):
        raise unsupported_value("reasoning.effort", effort, EFFORTS)
    given.finish({"summary": ("auto",), "generate_summary": ("auto",), "context": ("auto",)})
    return {"effort": effort, "summary": None}


def _take_logprobs(fields: Fields) -> tuple[bool, int]:
    """Whether output text has log-probabilities, and the number of alternatives."""
    included = [as_string(each, f"include[{i}]") for i, each in enumerate(fields.array("include", MAX_INCLUDES) or [])]
    for i, each in enumerate(included):
        if each not in (_LOGPROBS, _NOTHING_ENCRYPTED):
            raise invalid(
                f"include[{i}]",
                f"'include[{i}]' supports only '{_LOGPROBS}' and '{_NOTHING_ENCRYPTED}'.",
                "unsupported_parameter",
            )
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    if top and _LOGPROBS not in included:
        raise invalid("top_logprobs", f"'top_logprobs' is only allowed when 'include' has '{_LOGPROBS}'.")
    return _LOGPROBS in included, top
