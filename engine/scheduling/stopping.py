"""Who is done."""

from typing import NamedTuple

from engine.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a request ends. `token` is the end-of-text or stop token that ended it, if one did."""

    reason: FinishReason
    token: int | None = None


def computed_at_end(request: Request, window_tokens: int) -> int:
    """How many of its tokens are computed when the request has run to its length: all but the last of its answer."""
    return max(request.prompt_tokens, min(request.prompt_tokens + request.max_tokens, window_tokens) - 1)


def ends_in_flight(request: Request) -> bool:
    """Will a running request end by its length, at the latest, when what is in flight has landed?"""
    return request.scheduled >= request.computed_at_end


def decodes(request: Request) -> bool:
    """Does a running request get its next token, not its first, in the next step?"""
    known = len(request.tokens)
    return request.scheduled >= max(request.prompt_tokens, known - 1) and not ends_in_flight(request)


def is_end(request: Request, token: int) -> bool:
    """Is it one that ends the request, once that has its `min_tokens`?"""
    params = request.params
    return (token in request.eos_token_ids and not params.ignore_eos) or token in params.stop_token_ids


def stop_after_token(request: Request, window_tokens: int) -> Stop | None:
    """Does the request end with the token that was just drawn, the last of its tokens?

    An end token counts only as a token beyond `min_tokens`. A window of n tokens is full when n tokens are
    known, though the KV of the last will never be computed.
    """
    params, tokens = request.params, request.tokens
    token, known = tokens[-1], len(tokens)
    drawn = known - request.prompt_tokens
    if drawn > params.min_tokens and is_end(request, token):
        return Stop(FinishReason.STOP, token)
    if drawn >= request.max_tokens or known >= window_tokens:
        return Stop(FinishReason.LENGTH)
    return None
