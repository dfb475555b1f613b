"""Shedding: a saturated server says so at once, instead of letting everybody wait."""

from engine.scheduling.wait import retry_after_ms
from gateway.api.engine_client import EngineClient
from gateway.api.errors import RATE_LIMIT, APIError
from gateway.api.rate_headers import retry_headers
from gateway.api.service_classes import SERVICE_CLASSES, wait_bound_ms
from gateway.tenancy.records import Tier


def shed(
    engine: EngineClient, model: str, tier: Tier, prompt_tokens: int, standard_wait_ms: int, spread: float
) -> None:
    """Turn a request away whose predicted wait is past its class's bound; `spread` from [0, 1) parts the returns.

    Raises:
        APIError: 429 `overloaded`, with the time in which the queue drains.
    """
    bound_ms = wait_bound_ms(tier, standard_wait_ms)
    wait = engine.predicted_wait(model, SERVICE_CLASSES[tier], prompt_tokens)
    if wait.first_token_ns <= bound_ms * 1_000_000:
        return
    raise APIError(
        429,
        f"The model is busy: this request would wait {wait.first_token_ns / 1e9:.1f} s for its first token.",
        type=RATE_LIMIT,
        code="overloaded",
        headers=retry_headers(retry_after_ms(max(wait.drain_ns, 1), spread)),
        limit={"scope": "class", "name": SERVICE_CLASSES[tier].name, "limit": bound_ms},
    )
