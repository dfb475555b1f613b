"""Limits of requests that generate nothing: they count as requests and not as tokens."""

from gateway.admission.book import demands_of, limits_for
from gateway.admission.model import Measure
from gateway.generation.engine_client import ServedModel
from gateway.generation.response_format import new_id
from gateway.generation.service_classes import TierClasses
from gateway.generation.services import Services
from gateway.http.rate_headers import rate_headers
from gateway.tenancy.records import Principal


async def count_request(
    services: Services, classes: TierClasses, caller: Principal, model: ServedModel
) -> dict[str, str]:
    """Count a request against requests per minute before its work begins, so that it counts however it ends. Returns
    the rate limit headers.

    Raises:
        QuotaExceeded: none is left.
        StoreAway: the limits cannot be checked.
    """
    own = classes.of_tier(caller.tier)
    limits = limits_for(caller, (model.name,), model.windows[own.name], own.limits)
    quotas = [quota for quota in limits.quotas if quota.scope.measure is Measure.REQUESTS_PER_MINUTE]
    demands = demands_of(quotas, prompt_tokens=0, choices=0, prompt_nanodollars=0, token_nanodollars=0)
    hold = await services.limiter.hold(new_id("count-"), demands, minimum_tokens=0, desired_tokens=0)
    await services.limiter.settle(hold, 0)
    return rate_headers(hold.states)
