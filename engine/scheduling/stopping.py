"""Who is done."""

from typing import NamedTuple

from engine.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a request ends. `token` is the end-of-text or stop token that ended it, if one did."""

    reason: FinishReason
    token: int | None = None


def stop_after_token(request: Request, window_tokens: int) -> Stop | None:
    """Does the request end with the token that was just drawn, the last of its tokens?

    An end token counts only as a token beyond `min_tokens`. A window of n tokens is full when n tokens are
    known, though the KV of the last will never be computed.
    """
    params, tokens = request.params, request.tokens
    token, known = tokens[-1], len(tokens)
    drawn = known - request.prompt_tokens
    ends = (token in request.eos_token_ids and not params.ignore_eos) or token in params.stop_token_ids
    if ends and drawn > params.min_tokens:
        return Stop(FinishReason.STOP, token)
    if drawn >= request.max_tokens or known >= window_tokens:
        return Stop(FinishReason.LENGTH)
    return None
