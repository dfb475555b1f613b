"""Load shedding: a saturated server refuses a request at once, by the predicted wait.

An admitted request counts at once: nothing is awaited between the prediction of its wait and the reservation of its
place in the queue. The reservation is a context manager, so every way out of a request releases it.
"""

from collections.abc import Sequence

from engine.runtime.reservation import ExpectedPrompt, Reservation
from engine.scheduling.wait import retry_after_ms
from engine.scheduling.wait_bound import is_admitted
from gateway.generation.engine_client import EngineClient
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.service_classes import TierClass
from gateway.http.errors import RATE_LIMIT, APIError
from gateway.http.rate_headers import retry_headers


class Overloaded(APIError):
    """429 `overloaded`: the predicted wait is over the class's bound."""


class ModelUnavailable(APIError):
    """The server of a model gives no answer. Nothing of one has arrived, so another model may take the request."""


def reserve(engine: EngineClient, model: str, serving: TierClass, spread: float) -> Reservation:
    """Reserve a place for a request that has not been tokenised, unless even a prompt of 1 token would wait past its
    class's bound: a saturated server does not tokenise what it refuses. `confirm` follows.

    `spread` from [0, 1): jitter of the Retry-After of requests that are refused together.

    Raises:
        Overloaded: with the time in which the queue drains as Retry-After.
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
    """Update a reservation to the tokenised prompts, unless they would wait past the bound.

    `at_a_time`: prompts that are submitted together, before the others. None: all.

    Raises:
        Overloaded: the reservation is released.
    """
    reservation.release()  # the request does not wait for itself
    _require_short_wait(engine, model, serving, sum(len(prompt.token_ids) for prompt in prompts), spread)
    reservation.expect(
        [ExpectedPrompt(len(each.token_ids), each.params.n, each.max_tokens) for each in prompts[:at_a_time]]
    )


def _require_short_wait(
    engine: EngineClient, model: str, serving: TierClass, prompt_tokens: int, spread: float
) -> None:
    """Raise `Overloaded` where the predicted wait, with the margin, is past the class's bound.

    Longer prompts wait longer.
    """
    wait = engine.predicted_wait(model, serving.engine_class, prompt_tokens)
    if is_admitted(wait.first_token_ns, wait.drain_ns, serving.max_wait_ms * 1_000_000):
        return
    raise Overloaded(
        429,
        f"The model is busy: this request would wait {wait.first_token_ns / 1e9:.1f} s for its first token.",
        type=RATE_LIMIT,
        code="overloaded",
        headers=retry_headers(retry_after_ms(wait.drain_ns, spread)),
        limit={"scope": "class", "name": serving.name, "limit": serving.max_wait_ms},
    )
