"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from dataclasses import dataclass, replace

from engine.grammar import GrammarSpec
from engine.request import MAX_STOP_STRINGS, SamplingParams
from engine.sampling_defaults import SAMPLING_DEFAULTS
from gateway.formats.anthropic.blocks import take_conversation
from gateway.formats.anthropic.tools import take_tools
from gateway.formats.openai.sampling import MAX_TOKEN_ID, MAX_TOKENS
from gateway.formats.openai.structured import schema_spec
from gateway.generation.request import GenerationRequest
from gateway.http.bounds import MAX_STOP_CHARS
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_string, missing, unsupported_value, wrong_length

MIN_THINKING_TOKENS = 1024
"""Anthropic's bound on `budget_tokens`."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TIERS = {"auto": "auto", "standard_only": "default"}
"""Anthropic's service tiers -> OpenAI's, which `TierClasses` reads."""

REFUSED_MESSAGES: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Parameters of Anthropic's that are not supported, each with its neutral values."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with the options of Anthropic's answer. `max_tokens`: bound of the answer; the context window may
    shorten it. Without `shows_thinking`, thinking blocks are empty."""

    request: GenerationRequest
    max_tokens: int
    shows_thinking: bool


@dataclass(frozen=True, slots=True)
class _Thinking:
    """`wanted`: None leaves the choice to the template."""

    wanted: bool | None = None
    shown: bool = True
    budget_tokens: int | None = None


def parse_messages(fields: Fields) -> Asked:
    """Raises: APIError, InvalidParameter."""
    unstated = fields.unstated(SAMPLING_DEFAULTS)
    max_tokens = fields.integer("max_tokens", 1, MAX_TOKENS)
    if max_tokens is None:
        raise missing("max_tokens")
    params = SamplingParams(
        temperature=_take_temperature(fields),
        top_p=fields.number("top_p", 1.0),
        top_k=fields.integer("top_k", 0, MAX_TOKEN_ID) or 0,
        stop=_take_stop_sequences(fields),
        grammar=_take_output_config(fields),
    )
    stream = fields.boolean("stream", False)
    tier = _take_tier(fields)
    _take_metadata(fields)
    request, thinking = _take_question(fields, params, max_tokens, stream, tier)
    if thinking.budget_tokens is not None and thinking.budget_tokens >= max_tokens:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens must be less than max_tokens.")
    return Asked(replace(request, unstated=unstated), max_tokens, thinking.shown)


def parse_count(fields: Fields) -> GenerationRequest:
    """The body of count_tokens, which requests no answer. Raises: APIError."""
    params = SamplingParams(grammar=_take_output_config(fields))
    return _take_question(fields, params, None, False, None)[0]


def _take_question(
    fields: Fields, params: SamplingParams, max_tokens: int | None, stream: bool, tier: str | None
) -> tuple[GenerationRequest, _Thinking]:
    """The members that both bodies share, from which the prompt is made. Rejects all others."""
    model = fields.required_string("model")
    thinking = _take_thinking(fields)
    variables = {} if thinking.wanted is None else {"enable_thinking": thinking.wanted}
    conversation = take_conversation(fields, variables)
    if conversation.continue_final_message and thinking.wanted:
        raise invalid("messages", "The final message must not be an assistant message when thinking is enabled.")
    tools = take_tools(fields)
    fields.nested("cache_control")  # a hint, as in blocks
    fields.finish(REFUSED_MESSAGES)
    request = GenerationRequest(
        model=model,
        prompts=(conversation,),
        prompt_param="messages",
        params=params,
        limit_param=None,
        default_max_tokens=max_tokens,
        stream=stream,
        include_usage=True,
        service_tier=tier,
        tools=tools,
    )
    return request, thinking


def _take_temperature(fields: Fields) -> float:
    temperature = fields.number("temperature", 1.0)
    if not 0.0 <= temperature <= 1.0:
        raise invalid(
            "temperature", f"Invalid 'temperature': expected a value between 0 and 1, but got {temperature} instead."
        )
    return temperature


def _take_stop_sequences(fields: Fields) -> tuple[str, ...]:
    items = fields.array("stop_sequences", MAX_STOP_STRINGS) or []
    strings = tuple(as_string(item, f"stop_sequences[{i}]") for i, item in enumerate(items))
    for i, string in enumerate(strings):
        if not 0 < len(string) <= MAX_STOP_CHARS:
            raise wrong_length(f"stop_sequences[{i}]", MAX_STOP_CHARS)
    return strings


def _take_tier(fields: Fields) -> str | None:
    asked = fields.string("service_tier")
    if asked is None:
        return None
    if asked not in _TIERS:
        raise unsupported_value("service_tier", asked, _TIERS)
    return _TIERS[asked]


def _take_metadata(fields: Fields) -> None:
    metadata = fields.nested("metadata")
    if metadata is not None:
        metadata.string("user_id")
        metadata.finish({})


def _take_thinking(fields: Fields) -> _Thinking:
    """The template variable `enable_thinking`. Templates without it ignore it; `adaptive` and a missing `thinking`
    leave it unset. `budget_tokens` is checked against Anthropic's bounds and otherwise ignored."""
    given = fields.nested("thinking")
    if given is None:
        return _Thinking()
    kind, budget_tokens, shown = given.required_string("type"), None, True
    if kind not in ("enabled", "adaptive", "disabled"):
        raise unsupported_value(given.path("type"), kind, ("enabled", "adaptive", "disabled"))
    if kind == "enabled":
        budget_tokens = given.integer("budget_tokens", MIN_THINKING_TOKENS, MAX_TOKENS)
        if budget_tokens is None:
            raise missing(given.path("budget_tokens"))
    if kind != "disabled":
        display = given.string("display") or "summarized"
        if display not in ("summarized", "omitted"):
            raise unsupported_value(given.path("display"), display, ("summarized", "omitted"))
        shown = display == "summarized"
    given.finish({})
    return _Thinking({"enabled": True, "disabled": False}.get(kind), shown, budget_tokens)


def _take_output_config(fields: Fields) -> GrammarSpec | None:
    """The JSON schema of the answer. `effort` is a hint."""
    given = fields.nested("output_config")
    if given is None:
        return None
    effort = given.string("effort")
    if effort is not None and effort not in _EFFORTS:
        raise unsupported_value(given.path("effort"), effort, _EFFORTS)
    form = given.nested("format")
    given.finish({})
    return None if form is None else _take_format(form)


def _take_format(form: Fields) -> GrammarSpec:
    kind = form.required_string("type")
    if kind != "json_schema":
        raise unsupported_value(form.path("type"), kind, ("json_schema",))
    schema, path = form.take("schema"), form.path("schema")
    if schema is None:
        raise missing(path)
    form.finish({})
    return schema_spec(schema, path)
