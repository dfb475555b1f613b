"""The body of a call: a prepared prompt in the API of its server."""

from collections.abc import Mapping
from typing import Any

import orjson

from engine.grammar import GrammarSpec
from engine.grammar.spec import GrammarKind
from engine.request import PromptInput, SamplingParams
from engine.sampling_defaults import SAMPLING_DEFAULTS
from gateway.generation.remote_prompt import RemoteChat, RemotePrompt
from gateway.generation.request import GenerationRequest
from gateway.speech.tools import Tool, ToolChoice, ToolUse

CHAT_PATH = "/chat/completions"
COMPLETIONS_PATH = "/completions"
EMBEDDINGS_PATH = "/embeddings"

_NEUTRAL = SamplingParams()


def prompt_of(given: PromptInput) -> RemotePrompt:
    """The prompt of a call."""
    prompt = given.token_ids
    return prompt if isinstance(prompt, RemotePrompt) else RemotePrompt(prompt, len(prompt), prompt)


def call_of(given: PromptInput, model: str, *, running_usage: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a call. `model`: the name that the server knows. `running_usage`: ask for the usage in every
    chunk."""
    prompt, params = prompt_of(given), given.params
    if params.pooling is not None:
        inputs = prompt.content if isinstance(prompt.content, str) else list(prompt)
        return EMBEDDINGS_PATH, {"model": model, "input": inputs, "encoding_format": "float"}
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if running_usage else {})
    body = {"model": model, "stream": True, "stream_options": options} | _sampling(prompt, params)
    if isinstance(prompt.content, RemoteChat):
        return CHAT_PATH, body | _chat(prompt.content, params) | _tools(prompt.request)
    inputs = prompt.content if isinstance(prompt.content, str) else list(prompt.content)
    body |= {"prompt": inputs}
    if prompt.request is not None and not prompt.request.add_special_tokens:
        body["add_special_tokens"] = False
    if params.logprobs is not None:
        body["logprobs"] = params.logprobs
    return COMPLETIONS_PATH, body


def _sampling(prompt: RemotePrompt, params: SamplingParams) -> dict[str, Any]:
    """The parameters that the client stated, and those that differ from the neutral ones: the server has defaults of
    its own."""
    request = prompt.request
    body = _limit(prompt, params)
    for name in SAMPLING_DEFAULTS:
        value = getattr(params, name)
        is_stated = request is not None and name not in request.unstated
        if is_stated or value != getattr(_NEUTRAL, name):
            body[name] = -1 if name == "top_k" and not value else value
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    others: dict[str, tuple[Any, Any]] = {
        "n": (params.n, 1),
        "seed": (params.seed, None),
        "stop": (list(params.stop), []),
        "stop_token_ids": (list(params.stop_token_ids), []),
        "min_tokens": (params.min_tokens, 0),
        "ignore_eos": (params.ignore_eos, False),
        "allowed_token_ids": (None if (ids := params.allowed_token_ids) is None else sorted(ids), None),
        "skip_special_tokens": (params.skip_special_tokens, True),
        "include_stop_str_in_output": (params.include_stop, False),
    }
    body |= {name: value for name, (value, neutral) in others.items() if value != neutral}
    grammar = params.grammar if request is None else request.params.grammar
    return body if grammar is None else body | _constraint(grammar)


def _limit(prompt: RemotePrompt, params: SamplingParams) -> dict[str, Any]:
    """The longest answer. The rest of the window is the server's own default, by its own count of the prompt."""
    request = prompt.request
    is_rest = (
        request is not None
        and request.params.max_tokens is None
        and request.default_max_tokens is None
        and params.max_tokens == prompt.answer_tokens
    )
    if is_rest or params.max_tokens is None:
        return {}
    is_newer = request is not None and request.limit_param == "max_completion_tokens"
    return {"max_completion_tokens" if is_newer else "max_tokens": params.max_tokens}


def _chat(chat: RemoteChat, params: SamplingParams) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [_message(each) for each in chat.messages]}
    variables = dict(chat.variables)
    if (effort := variables.pop("reasoning_effort", None)) is not None:
        body["reasoning_effort"] = effort
    if variables:
        body["chat_template_kwargs"] = variables
    if chat.continue_final_message:
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    elif not chat.add_generation_prompt:
        body["add_generation_prompt"] = False
    if params.logprobs is not None:
        body |= {"logprobs": True} | ({"top_logprobs": params.logprobs} if params.logprobs else {})
    return body


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with the arguments of its calls as JSON text, as the API has them."""
    written = dict(message)
    if calls := written.get("tool_calls"):
        written["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
            for call in calls
        ]
    return written


def _tools(request: GenerationRequest | None) -> dict[str, Any]:
    use = None if request is None else request.tools
    if use is None or not use.shown:
        return {}
    body: dict[str, Any] = {"tools": [_declared(tool) for tool in use.shown], "tool_choice": _choice(use)}
    return body if use.parallel else body | {"parallel_tool_calls": False}


def _choice(use: ToolUse) -> str | dict[str, Any]:
    if use.named is not None:
        return {"type": "function", "function": {"name": use.named}}
    return ToolChoice(use.choice).value


def _declared(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _constraint(grammar: GrammarSpec) -> dict[str, Any]:
    """`response_format` for JSON, vLLM's `structured_outputs` for the others."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            if grammar == GrammarSpec.json_object():
                return {"response_format": {"type": "json_object"}}
            schema = {"name": "answer", "schema": orjson.loads(grammar.source), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case GrammarKind.REGEX:
            return {"structured_outputs": {"regex": grammar.source}}
        case GrammarKind.CHOICE:
            return {"structured_outputs": {"choice": orjson.loads(grammar.source)}}
        case GrammarKind.EBNF:
            return {"structured_outputs": {"grammar": grammar.source}}


def _json(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
