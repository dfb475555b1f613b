"""Shedding: a saturated server says so at once, instead of letting everybody wait."""

from engine.scheduling.wait import retry_after_ms
from gateway.api.engine_client import EngineClient
from gateway.api.errors import RATE_LIMIT, APIError
from gateway.api.rate_headers import retry_headers
from gateway.api.service_classes import TierClass


class Overloaded(APIError):
    """429 `overloaded`: the wait is predicted to be too long."""


PREDICTION_MARGIN = 1.25
"""A wait may come out so much longer than predicted: whoever is let in is to have a first token within the bound."""


def shed(engine: EngineClient, model: str, serving: TierClass, prompt_tokens: int, spread: float) -> None:
    """Turn a request away whose predicted wait, with the margin, is past its class's bound.

    Longer prompts wait longer: one that is turned away as a prompt of 1 token would be with all that it has. A request
    with nobody ahead of it is let in whatever its own prompt takes, as coming back later would not help it.
    `spread` from [0, 1) parts the returns of those turned away.

    Raises:
        Overloaded: with the time in which the queue drains.
    """
    if engine.queue_depth(model) == 0:
        return
    wait = engine.predicted_wait(model, serving.engine_class, prompt_tokens)
    if wait.drain_ns == 0 or PREDICTION_MARGIN * wait.first_token_ns <= serving.max_wait_ms * 1_000_000:
        return
    raise Overloaded(
        429,
        f"The model is busy: this request would wait {wait.first_token_ns / 1e9:.1f} s for its first token.",
        type=RATE_LIMIT,
        code="overloaded",
        headers=retry_headers(retry_after_ms(wait.drain_ns, spread)),
        limit={"scope": "class", "name": serving.name, "limit": serving.max_wait_ms},
    )
