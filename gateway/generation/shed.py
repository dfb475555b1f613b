"""Shedding: a saturated server says so at once, instead of letting everybody wait.

Whoever is let in counts at once: between the question how long it would wait and its place in the queue nothing is
awaited. The place is a reservation, a context manager, so it is released by every way that a request can go.
"""

from collections.abc import Sequence

from engine.runtime.reservation import ExpectedPrompt, Reservation
from engine.scheduling.wait import retry_after_ms
from gateway.generation.engine_client import EngineClient
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.service_classes import TierClass
from gateway.http.errors import RATE_LIMIT, APIError
from gateway.http.rate_headers import retry_headers


class Overloaded(APIError):
    """429 `overloaded`: the wait is predicted to be too long."""


PREDICTION_MARGIN = 1.25
"""A wait may come out so much longer than predicted: whoever is let in is to have a first token within the bound."""


def reserve(engine: EngineClient, model: str, serving: TierClass, spread: float) -> Reservation:
    """Let a request in that has not been tokenised, unless a prompt of 1 token would wait past its class's bound: a
    full server does not tokenise what it turns away, whatever its length. `confirm` follows.

    `spread` from [0, 1) parts the returns of those turned away.

    Raises:
        Overloaded: with the time in which the queue drains.
    """
    _require_short_wait(engine, model, serving, 1, spread)
    return engine.reserve(model, serving.engine_class)


def confirm(
    reservation: Reservation,
    engine: EngineClient,
    model: str,
    serving: TierClass,
    prompts: Sequence[PreparedPrompt],
    spread: float,
    at_a_time: int | None = None,
) -> None:
    """Keep a reservation for what the request turned out to be, unless that would wait past the bound.

    `at_a_time`: prompts that are submitted together; the others come when those have ended. None: all.

    Raises:
        Overloaded: nothing is reserved any more.
    """
    reservation.release()  # it is not ahead of itself
    _require_short_wait(engine, model, serving, sum(len(prompt.token_ids) for prompt in prompts), spread)
    reservation.expect(
        [ExpectedPrompt(len(each.token_ids), each.params.n, each.max_tokens) for each in prompts[:at_a_time]]
    )


def _require_short_wait(
    engine: EngineClient, model: str, serving: TierClass, prompt_tokens: int, spread: float
) -> None:
    """Raise `Overloaded` where the predicted wait, with the margin, is past the class's bound.

    Longer prompts wait longer. A request with nobody ahead of it is let in whatever its own prompt takes, as coming
    back later would not help it.
    """
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
