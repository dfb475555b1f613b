"""OpenAI's rate limit headers, from the limits' states when the request was admitted or rejected."""

from collections.abc import Sequence

from gateway.admission import LimitState, Measure, tightest

_REQUESTS = (Measure.REQUESTS_PER_MINUTE,)
_TOKENS = (Measure.TOKENS_PER_MINUTE, Measure.TOKENS_PER_DAY)


def rate_headers(states: Sequence[LimitState]) -> dict[str, str]:
    """`x-ratelimit-limit|remaining|reset-requests|tokens` of the tightest limit; empty where there is no limit."""
    headers = {}
    for word, measures in (("requests", _REQUESTS), ("tokens", _TOKENS)):
        state = tightest(states, measures)
        if state is not None:
            headers[f"x-ratelimit-limit-{word}"] = str(state.quota.limit)
            headers[f"x-ratelimit-remaining-{word}"] = str(state.remaining)
            headers[f"x-ratelimit-reset-{word}"] = duration(state.reset_ms)
    return headers


def retry_headers(retry_after_ms: int | None) -> dict[str, str]:
    """`retry-after` in whole seconds, rounded up, and `retry-after-ms`; empty where retrying does not help."""
    if retry_after_ms is None:
        return {}
    return {"retry-after": str(max(1, -(-retry_after_ms // 1000))), "retry-after-ms": str(retry_after_ms)}


def duration(milliseconds: int) -> str:
    """A duration in OpenAI's form: `120ms`, `1s`, `6m0s`, `1h2m3s`. Fractions of a second are rounded up."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(-(-milliseconds // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
