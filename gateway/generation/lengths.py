"""How long a prompt and its answer may be, in tokens."""

from collections.abc import Sequence

from gateway.generation.request import GenerationRequest
from gateway.http.bounds import MAX_PROMPT_LOGPROBS, MIN_TOKENIZED_BYTES, TOKENIZED_BYTES_PER_TOKEN
from gateway.http.errors import APIError, invalid
from gateway.http.fields import too_long


def truncated(request: GenerationRequest, token_ids: Sequence[int], window: int) -> Sequence[int]:
    """The prompt, truncated as the request asks for, if it does."""
    if request.truncation is None:
        return token_ids
    most = request.truncation.tokens
    if most is None:
        wanted = request.params.max_tokens
        answer = request.default_max_tokens or 1 if wanted is None else wanted
        most = max(0, window - answer)
    if len(token_ids) <= most:
        return token_ids
    return token_ids[len(token_ids) - most :] if request.truncation.keeps_end else token_ids[:most]


def bound_prompt_logprobs(request: GenerationRequest, encoded: Sequence[Sequence[int]]) -> None:
    """Raises:
    APIError: 400, the request asks for more log-probabilities of prompts than one answer may hold.
    """
    alternatives = request.details.prompt_logprobs
    if alternatives is None:
        return
    entries = sum(map(len, encoded)) * (alternatives + 1)
    if entries > MAX_PROMPT_LOGPROBS:
        message = f"Too many 'prompt_logprobs': {entries} entries, the maximum is {MAX_PROMPT_LOGPROBS}."
        raise invalid("prompt_logprobs", message)


def longer_than_window(param: str, window: int, tokens: str) -> APIError:
    """The error for a prompt of `tokens` tokens, such as "3000" or "at least 3000".

    The message is OpenAI's and vLLM's: proxies match on it.
    """
    message = (
        f"This model's maximum context length is {window} tokens. However, your {param} resulted in {tokens} tokens. "
        f"Please reduce the length of the {param}."
    )
    return invalid(param, message, "context_length_exceeded")


def require_tokenizable(param: str, text_bytes: int, window: int) -> None:
    """Bound text that is tokenised even if it has more tokens than the window, because it is truncated.

    Raises:
        APIError: 400, `text_bytes` is over the bound.
    """
    most = max(MIN_TOKENIZED_BYTES, TOKENIZED_BYTES_PER_TOKEN * window)
    if text_bytes > most:
        raise too_long(param, most, text_bytes)


def answer_tokens(request: GenerationRequest, prompt_tokens: int, window: int) -> int:
    """The maximum length of the answer: the requested one, the default, or the rest of the context window.

    Raises:
        APIError: 400, `context_length_exceeded` if prompt and answer do not fit the window.
    """
    param = request.prompt_param
    if prompt_tokens == 0:
        raise invalid(param, f"Invalid '{param}': the prompt has no tokens.")
    room = window - prompt_tokens
    wanted = request.params.max_tokens
    if room < (1 if wanted is None else min(1, wanted)):
        raise longer_than_window(param, window, f"{prompt_tokens}")
    if wanted is None:
        default = room if request.default_max_tokens is None else request.default_max_tokens
        return min(default, room)
    if wanted > room:
        raise invalid(
            request.limit_param,
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the {param}, {wanted} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            "context_length_exceeded",
        )
    return wanted
