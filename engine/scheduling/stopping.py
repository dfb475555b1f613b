"""When requests end."""

from typing import NamedTuple

from engine.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a request ends. `token`: the end-of-text or stop token that ended it, if one did."""

    reason: FinishReason
    token: int | None = None


def computed_at_end(request: Request, window_tokens: int) -> int:
    """The value of `computed` when the request ends by length: all tokens but the last of the answer."""
    return max(request.prompt_tokens, min(request.prompt_tokens + request.max_tokens, window_tokens) - 1)


def ends_in_flight(request: Request) -> bool:
    """Whether a running request ends, by length or earlier, when its rows in flight are complete."""
    return request.scheduled >= request.computed_at_end


def decodes(request: Request) -> bool:
    """Whether a running request is in decode: the next step samples a token that is not its first."""
    known = len(request.tokens)
    return request.scheduled >= max(request.prompt_tokens, known - 1) and not ends_in_flight(request)


def is_end(request: Request, token: int) -> bool:
    """Whether the token ends the request once that has its `min_tokens`."""
    params = request.params
    return (token in request.eos_token_ids and not params.ignore_eos) or token in params.stop_token_ids


def stop_after_token(request: Request, window_tokens: int) -> Stop | None:
    """Whether the request ends with its last token, which was just sampled.

    An end token counts only beyond `min_tokens`. A window of n tokens is full when n tokens are known, although the KV
    of the last one is never computed.
    """
    params, tokens = request.params, request.tokens
    token, known = tokens[-1], len(tokens)
    drawn = known - request.prompt_tokens
    if drawn > params.min_tokens and is_end(request, token):
        return Stop(FinishReason.STOP, token)
    if drawn >= request.max_tokens or known >= window_tokens:
        return Stop(FinishReason.LENGTH)
    return None
