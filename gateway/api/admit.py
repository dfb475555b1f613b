"""Admission of a prepared request: hold what it may need, run it no further than that, settle and bill what it used."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from engine.request import Usage
from gateway.admission import Hold, Limiter, Quota
from gateway.admission.book import demands_of
from gateway.api.errors import ClientGone
from gateway.api.prepare import PreparedPrompt
from gateway.api.usage import UsageTotal
from gateway.metering.event import Ending
from gateway.metering.journal import Journal
from gateway.metering.meter import Meter
from gateway.metering.opening import Opening

LAST_WORD_S = 2.0
"""How long the engine is waited for to say what an answer that was cut short had consumed: it takes a step."""


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

    def started(self) -> None:
        """The engine works for it: it will say what each choice consumed."""
        self._running = True

    def sent(self) -> None:
        """All that `usage` has counted was handed to the client's socket."""
        self._meter.advance(self.usage.progress)

    def aborted(self, choice: int, usage: Usage) -> None:
        """What a choice had consumed that was not read to its end."""
        self.usage.aborted(choice, usage)
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
        """It ended, early unless it is complete. Idempotent."""
        if self._running and not self.usage.settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await self._known.wait()
        self._meter.abandon(self.usage.progress, self.usage.work, ending)
        await self._settle()

    async def _settle(self) -> None:
        """Commit what was used and free the rest, once. It is finished even if the caller is cancelled."""
        if self._settled is None:
            self._settled = asyncio.create_task(self._commit())
        await asyncio.shield(self._settled)

    async def _commit(self) -> None:
        if self.usage.total_tokens:
            await self._limiter.settle(self.hold, self.usage.total_tokens, self._meter.billed_nanodollars)
        else:
            await self._limiter.release(self.hold)


@asynccontextmanager
async def admitted(
    limiter: Limiter,
    journal: Journal,
    opening: Opening,
    quotas: Sequence[Quota],
    prompts: Sequence[PreparedPrompt],
    choices_each: int,
) -> AsyncIterator[Admission]:
    """Hold prompt and answer of every choice against all quotas, for the time of the block, and meter it.

    Where a limit has less left than was asked for, the answers are cut to it: they end at the very token where the
    limit does.

    Raises:
        QuotaExceeded: not even a token each fits. StoreAway: the limits cannot be checked.
        JournalUnavailable: what is used could not be billed.
    """
    lengths = [len(prompt.token_ids) for prompt in prompts]
    wanted = max(prompt.max_tokens for prompt in prompts)
    demands = demands_of(
        quotas,
        prompt_tokens=sum(lengths),
        choices=len(prompts) * choices_each,
        prompt_nanodollars=opening.price.of(sum(lengths), 0, 0),
        token_nanodollars=opening.price.completion,
    )
    least = min(wanted, max(1, prompts[0].params.min_tokens))
    hold = await limiter.hold(opening.request_id, demands, minimum_tokens=least, desired_tokens=wanted)
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


def _cut(prompt: PreparedPrompt, granted_tokens: int) -> PreparedPrompt:
    if prompt.max_tokens <= granted_tokens:
        return prompt
    return replace(prompt, params=replace(prompt.params, max_tokens=granted_tokens))
