"""The body of POST /v1/chat/completions."""

from engine.request import MAX_TOP_LOGPROBS
from engine.sampling_defaults import SAMPLING_DEFAULTS
from gateway.formats.openai.chat_messages import take_conversation
from gateway.formats.openai.details import take_details
from gateway.formats.openai.hints import take_hints
from gateway.formats.openai.older_functions import take_functions
from gateway.formats.openai.sampling import MAX_TOKENS, REFUSED, take_sampling, take_stream, take_truncation
from gateway.formats.openai.tool_schema import take_tools
from gateway.generation.request import GenerationRequest
from gateway.http.errors import invalid
from gateway.http.fields import Fields
from gateway.http.session_ids import require_session_id
from gateway.speech.tools import ToolUse

REFUSED_CHAT: dict[str, tuple[object, ...]] = REFUSED | {
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "include_reasoning": (True,),
    "media_io_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "mm_processor_kwargs": ({},),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "return_prompt_text": (False,),
    "store": (False,),
    "suffix": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def parse_chat(fields: Fields) -> GenerationRequest:
    """Raises: APIError, InvalidParameter."""
    unstated = fields.unstated(SAMPLING_DEFAULTS)
    model = fields.required_string("model")
    conversation = take_conversation(fields)
    tools = _take_tools(fields)
    limit_param, max_tokens = _take_limit(fields)
    logprobs = _take_logprobs(fields)
    streaming = take_stream(fields)
    details = take_details(fields, streaming, logprobs=logprobs, most=MAX_TOP_LOGPROBS)
    params = take_sampling(fields, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=details.prompt_logprobs)
    truncation = take_truncation(fields)
    echo = fields.boolean("echo", False)
    service_tier = take_hints(fields)
    session_id = fields.string("session_id")
    if session_id is not None:
        require_session_id(session_id, "session_id")
    fields.finish(REFUSED_CHAT)
    return GenerationRequest(
        model=model,
        prompts=(conversation,),
        prompt_param="messages",
        params=params,
        limit_param=limit_param,
        default_max_tokens=None,
        stream=streaming.stream,
        include_usage=streaming.include_usage,
        service_tier=service_tier,
        echo=echo,
        session_id=session_id,
        tools=tools,
        details=details,
        truncation=truncation,
        unstated=unstated,
    )


def _take_tools(fields: Fields) -> ToolUse | None:
    tools, functions = take_tools(fields), take_functions(fields)
    if tools is not None and functions is not None:
        raise invalid("functions", "'functions' is not allowed together with 'tools'.")
    return tools or functions


def _take_limit(fields: Fields) -> tuple[str | None, int | None]:
    """`max_tokens` is the older name of `max_completion_tokens`."""
    limits = {
        name: value
        for name in ("max_completion_tokens", "max_tokens")
        if (value := fields.integer(name, 1, MAX_TOKENS)) is not None
    }
    if len(set(limits.values())) > 1:
        raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' have different values.")
    return next(iter(limits.items()), (None, None))


def _take_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs", False)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    return (top or 0) if wanted else None
