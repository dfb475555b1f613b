"""Admission of a prepared request: hold what it may need, run it no further than that, settle and bill what it used."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from engine.request import Usage
from gateway.admission import Hold, Limiter, Quota, QuotaExceeded
from gateway.admission.book import demands_of
from gateway.billing.prices import Price
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.usage import UsageTotal
from gateway.http.errors import ClientGone
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.meter import Meter
from gateway.metering.journal.opening import Opening

USAGE_TIMEOUT_S = 2.0
"""How long the engine is waited for to say what an answer that was cut short had consumed: it takes a step. Where it
has not said so by then, all that was held counts against limits."""


class HoldLost(QuotaExceeded):
    """What a request held and let go of for another model is not to be had again: it cannot go on with either."""


@dataclass(slots=True)
class Admission:
    """A request that may run. `prompts` have the length of their answers cut to what is held."""

    prompts: Sequence[PreparedPrompt]
    usage: UsageTotal
    hold: Hold
    _meter: Meter
    _limiter: Limiter
    _running: bool = False
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: asyncio.Task[None] | None = None

    def on_submitted(self) -> None:
        """The engine has it, and will report what each choice consumed."""
        self._running = True

    def reopen(self, opening: Opening) -> None:
        """What is sent from now on is billed as this says. Nothing has been sent yet.

        Raises:
            JournalUnavailable: what is used could not be billed.
        """
        self._meter.reopen(opening)

    async def switch_model(self, opening: Opening, quotas: Sequence[Quota], prompts: Sequence[PreparedPrompt]) -> None:
        """Another model answers from now on. Nothing has been sent of what the first one wrote; what it cost the engine
        stays with the request, and its tokens count against limits together with the other one's.

        Raises:
            QuotaExceeded: there is no room for the other model, and the first one goes on.
            HoldLost: somebody else has taken the first one's room meanwhile.
            StoreAway, JournalUnavailable: as `admitted`.
        """
        await self._wait_for_usage()
        former, choices_each, computed_tokens = self.hold, self.usage.choices_each, self._counted_tokens()
        # Both at a time may be more than a limit on concurrency allows.
        await self._limiter.release(former)
        # Should there be no other, what was computed is committed all the same.
        self.hold = replace(former, request_id=f"{opening.request_id}-4")
        try:
            hold = await _hold(
                self._limiter,
                f"{opening.request_id}-2",
                opening.price,
                quotas,
                prompts,
                choices_each,
                earlier_tokens=computed_tokens,
            )
        except QuotaExceeded:
            self.hold = await self._hold_again(f"{opening.request_id}-3", former)
            raise
        self.hold = hold
        self._meter.reopen(opening)
        lengths = [len(prompt.token_ids) for prompt in prompts]
        self.prompts = [_cut(prompt, hold.granted_tokens) for prompt in prompts]
        self.usage = UsageTotal(lengths, choices_each, hold.bound_by, self.usage.work, computed_tokens)
        self._running, self._known = False, asyncio.Event()

    def record_sent(self) -> None:
        """All that `usage` has counted was handed to the client's socket."""
        self._meter.advance(self.usage.progress)

    def on_aborted(self, choice: int, usage: Usage) -> None:
        """What a choice had consumed that was not read to its end, or not sent."""
        self.usage.on_aborted(choice, usage)
        if self.usage.settled:
            self._known.set()

    async def complete(self) -> None:
        """All choices have ended. On return that is on the disk, what was held is free, and the client may know.

        Raises:
            JournalUnavailable: it is not on the disk, so the client must not have the rest.
        """
        await self._meter.close(self.usage.progress, self.usage.work, self.usage.ending)
        await self._settle()

    async def end(self, ending: Ending) -> None:
        """It ended, early unless it is complete. Idempotent. A caller that is cancelled waits no longer for the engine;
        the request is journalled and settled all the same."""
        try:
            if not self._meter.closed:
                await self._wait_for_usage()
        finally:
            if not self._meter.closed:
                self._meter.abandon(self.usage.progress, self.usage.work, ending)
            await self._settle()

    async def _wait_for_usage(self) -> None:
        """Wait for the engine to say what each choice consumed, as long as that may take."""
        if self._running and not self.usage.settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(USAGE_TIMEOUT_S):
                    await self._known.wait()

    async def _hold_again(self, hold_id: str, former: Hold) -> Hold:
        tokens = former.granted_tokens
        try:
            return await self._limiter.hold(hold_id, former.demands, minimum_tokens=tokens, desired_tokens=tokens)
        except QuotaExceeded as error:
            raise HoldLost(error.refusal) from None

    async def _settle(self) -> None:
        """Commit what was used and free the rest, once. It is finished even if the caller is cancelled."""
        if self._settled is None:
            self._settled = asyncio.create_task(self._commit())
        if not self._settled.done():
            await asyncio.shield(self._settled)

    async def _commit(self) -> None:
        """What the engine computed counts, though nobody pays for what was not sent."""
        if tokens := self._counted_tokens():
            await self._limiter.settle(self.hold, tokens, self._meter.billed_nanodollars)
        else:
            await self._limiter.release(self.hold)

    def _counted_tokens(self) -> int:
        unknown = self._running and not self.usage.settled
        return self.usage.counted_tokens([prompt.max_tokens for prompt in self.prompts] if unknown else ())


@asynccontextmanager
async def admitted(
    limiter: Limiter,
    journal: Journal,
    opening: Opening,
    quotas: Sequence[Quota],
    prompts: Sequence[PreparedPrompt],
    choices_each: int,
    minimum_tokens: int = 0,
) -> AsyncIterator[Admission]:
    """Hold prompt and answer of every choice against all quotas, for the time of the block, and meter it.

    Where a limit has less left than was asked for, the answers are cut to it: they end at the very token where the
    limit does, unless that is before `minimum_tokens`, where the client asks for as many.

    Raises:
        QuotaExceeded: not even that, or a token each, fits. StoreAway: the limits cannot be checked.
        JournalUnavailable: what is used could not be billed.
    """
    lengths = [len(prompt.token_ids) for prompt in prompts]
    hold = await _hold(limiter, opening.request_id, opening.price, quotas, prompts, choices_each, minimum_tokens)
    try:
        meter = Meter(journal, opening)
    except BaseException:
        await asyncio.shield(limiter.release(hold))
        raise
    cut = [_cut(prompt, hold.granted_tokens) for prompt in prompts]
    admission = Admission(cut, UsageTotal(lengths, choices_each, hold.bound_by), hold, meter, limiter)
    ending = Ending.ERROR
    try:
        yield admission
    except ClientGone:
        ending = Ending.CANCELLED
        raise
    except asyncio.CancelledError:  # only a shutdown cancels
        ending = Ending.INTERRUPTED
        raise
    finally:
        await admission.end(ending)


async def _hold(
    limiter: Limiter,
    hold_id: str,
    price: Price,
    quotas: Sequence[Quota],
    prompts: Sequence[PreparedPrompt],
    choices_each: int,
    minimum_tokens: int = 0,
    earlier_tokens: int = 0,
) -> Hold:
    """`earlier_tokens` were computed by another model, and are paid for by nobody."""
    prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    demands = demands_of(
        quotas,
        prompt_tokens=prompt_tokens + earlier_tokens,
        choices=len(prompts) * choices_each,
        prompt_nanodollars=price.of(prompt_tokens, 0, 0),
        token_nanodollars=price.completion,
    )
    wanted = max(prompt.max_tokens for prompt in prompts)
    least = min(wanted, max(1, minimum_tokens, prompts[0].params.min_tokens))
    return await limiter.hold(hold_id, demands, minimum_tokens=least, desired_tokens=wanted)


def _cut(prompt: PreparedPrompt, granted_tokens: int) -> PreparedPrompt:
    if prompt.max_tokens <= granted_tokens:
        return prompt
    return replace(prompt, params=replace(prompt.params, max_tokens=granted_tokens))
