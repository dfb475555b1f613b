"""Admission of a prepared request: hold what it may need, run it no further than that, settle what it used."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway.admission import Hold, Limiter, Quota
from gateway.admission.book import demands_of
from gateway.api.errors import APIError
from gateway.api.prepare import PreparedPrompt
from gateway.api.usage import UsageTotal
from gateway.pricing import FREE, Price


@dataclass(slots=True)
class Admission:
    """A request that may run. `prompts` have the length of their answers cut to what is held."""

    prompts: Sequence[PreparedPrompt]
    usage: UsageTotal
    hold: Hold
    price: Price
    _limiter: Limiter
    _settled: asyncio.Task[None] | None = field(default=None)

    async def settle(self) -> None:
        """Commit what was used so far and free the rest, once. It is finished even if the caller is cancelled."""
        if self._settled is None:
            self._settled = asyncio.create_task(self._settle())
        await asyncio.shield(self._settled)

    async def _settle(self) -> None:
        usage = self.usage
        if usage.total_tokens:
            spent = self.price.of(usage.prompt_tokens, usage.completion_tokens)
            await self._limiter.settle(self.hold, usage.total_tokens, spent)
        else:
            await self._limiter.release(self.hold)


@asynccontextmanager
async def admitted(
    limiter: Limiter,
    request_id: str,
    quotas: Sequence[Quota],
    price: Price | None,
    prompts: Sequence[PreparedPrompt],
    choices_each: int,
) -> AsyncIterator[Admission]:
    """Hold prompt and answer of every choice against all quotas, for the time of the block.

    Where a limit has less left than was asked for, the answers are cut to it: they end at the very token where the
    limit does.

    Raises:
        QuotaExceeded: not even a token each fits. StoreAway: the limits cannot be checked.
        APIError: 403, a limit on money cannot hold for a model without a price.
    """
    if price is None:
        _refuse_money(quotas)
        price = FREE
    lengths = [len(prompt.token_ids) for prompt in prompts]
    wanted = max(prompt.max_tokens for prompt in prompts)
    demands = demands_of(
        quotas,
        prompt_tokens=sum(lengths),
        choices=len(prompts) * choices_each,
        prompt_nanodollars=price.of(sum(lengths), 0),
        token_nanodollars=price.completion,
    )
    least = min(wanted, max(1, prompts[0].params.min_tokens))
    hold = await limiter.hold(request_id, demands, minimum_tokens=least, desired_tokens=wanted)
    cut = [_cut(prompt, hold.granted_tokens) for prompt in prompts]
    admission = Admission(cut, UsageTotal(lengths, choices_each, hold.bound_by), hold, price, limiter)
    try:
        yield admission
    finally:
        await admission.settle()


def _refuse_money(quotas: Sequence[Quota]) -> None:
    if any(quota.scope.measure.counts_money for quota in quotas):
        raise APIError(
            403,
            "This account's spending is limited, and this model has no price.",
            param="model",
            code="model_not_priced",
        )


def _cut(prompt: PreparedPrompt, granted_tokens: int) -> PreparedPrompt:
    if prompt.max_tokens <= granted_tokens:
        return prompt
    return replace(prompt, params=replace(prompt.params, max_tokens=granted_tokens))
