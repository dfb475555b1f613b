"""The body of POST /v1/completions."""

from typing import cast

from gateway.api.bounds import MAX_CHOICES_PER_REQUEST, MAX_COMPLETION_LOGPROBS, MAX_PROMPTS
from gateway.api.errors import invalid
from gateway.api.fields import Fields, as_integer, missing, wrong_type
from gateway.api.generation import GenerationRequest, Prompt
from gateway.api.sampling import MAX_TOKEN_ID, MAX_TOKENS, REFUSED, take_hints, take_sampling, take_stream

DEFAULT_MAX_TOKENS = 16

REFUSED_COMPLETION: dict[str, tuple[object, ...]] = REFUSED | {
    "add_special_tokens": (True,),
    "prompt_embeds": (),
    "suffix": (),
}


def parse_completion(fields: Fields) -> GenerationRequest:
    """Raises: APIError, InvalidParameter."""
    model = fields.required_string("model")
    prompts = _prompts(fields.take("prompt"))
    echo = fields.boolean("echo", False)
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, MAX_TOKENS)
    logprobs = fields.integer("logprobs", 0, MAX_COMPLETION_LOGPROBS)
    best_of = fields.integer("best_of", 1, MAX_CHOICES_PER_REQUEST)
    params = take_sampling(fields, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=logprobs if echo else None)
    if best_of not in (None, params.n):
        raise invalid("best_of", "best_of is only supported when it equals n.", "unsupported_parameter")
    if len(prompts) * params.n > MAX_CHOICES_PER_REQUEST:
        raise invalid("n", f"A request makes at most {MAX_CHOICES_PER_REQUEST} choices, all prompts together.")
    stream, include_usage = take_stream(fields)
    service_tier = take_hints(fields)
    fields.finish(REFUSED_COMPLETION)
    return GenerationRequest(
        model=model,
        prompts=prompts,
        prompt_param="prompt",
        params=params,
        limit_param=None if max_tokens is None else "max_tokens",
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=stream,
        include_usage=include_usage,
        service_tier=service_tier,
        echo=echo,
    )


def _prompts(value: object) -> tuple[Prompt, ...]:
    """A string, an array of strings, an array of token ids, or an array of such arrays."""
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise invalid("prompt", "prompt must not be empty.")
    if type(value[0]) is int:
        return (token_ids(value, "prompt"),)
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"prompt takes at most {MAX_PROMPTS} prompts, got {len(value)}.")
    wanted = str if isinstance(value[0], str) else list
    prompts: list[Prompt] = []
    for i, item in enumerate(value):
        if type(item) is not wanted:
            raise wrong_type(f"prompt[{i}]", "a string" if wanted is str else "an array of token ids", item)
        prompts.append(item if isinstance(item, str) else token_ids(item, f"prompt[{i}]"))
    return tuple(prompts)


def token_ids(items: list[object], path: str) -> tuple[int, ...]:
    """Ids that some vocabulary could have; the model's own size is checked when the model is known."""
    if not items:
        raise invalid(path, f"{path} must not be empty.")
    if not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in items):
        for i, item in enumerate(items):  # again, to name the one at fault
            as_integer(item, f"{path}[{i}]", 0, MAX_TOKEN_ID)
    return tuple(cast(list[int], items))
