"""Admission: holds what a request may use, bounds its answer by the hold, and settles and bills what it used."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from engine.request import Usage
from gateway.admission import Hold, Limiter, Quota, QuotaExceeded
from gateway.admission.book import demands_of
from gateway.billing.prices import Price
from gateway.generation.context import Candidate
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.services import Services
from gateway.generation.usage import UsageTotal
from gateway.http.error_format import status_of
from gateway.http.errors import CLIENT_CLOSED_REQUEST, ClientGone, as_api_error, internal_error, shutting_down
from gateway.metering.event import Ending
from gateway.metering.journal.meter import Meter
from gateway.metering.journal.usage_context import UsageContext

USAGE_TIMEOUT_S = 2.0
"""How long to wait for the engine's report of what an aborted answer had consumed, which takes a step. Without a report
everything that was held counts against limits."""


class HoldLost(QuotaExceeded):
    """The request released its hold to try another model and could not re-acquire it; it fails on both models."""


@dataclass(slots=True)
class Admission:
    """An admitted request. `prompts` have their `max_tokens` cut to what is held."""

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

    def reopen(self, usage_context: UsageContext) -> None:
        """Replace the usage record. Nothing has been sent yet.

        Raises:
            JournalUnavailable: the record cannot be written.
        """
        self._meter.reopen(usage_context)

    async def switch_model(
        self, usage_context: UsageContext, quotas: Sequence[Quota], prompts: Sequence[PreparedPrompt]
    ) -> None:
        """Switch to another model. Nothing of the first one's answer has been sent; its engine time stays with the
        request, and its tokens count against limits together with the other model's.

        Raises:
            QuotaExceeded: the limits refuse the other model; the request stays with the first one.
            HoldLost: the first hold could not be taken again.
            StoreAway, JournalUnavailable: as `admitted`.
        """
        await self._wait_for_usage()
        former, choices_each, computed_tokens = self.hold, self.usage.choices_each, self._counted_tokens()
        # Both together may exceed a limit on concurrency.
        await self._limiter.release(former)
        # If there is no other hold, the computed tokens are still committed.
        self.hold = replace(former, request_id=f"{usage_context.request_id}-4")
        try:
            hold, cut = await _hold(
                self._limiter,
                f"{usage_context.request_id}-2",
                usage_context.price,
                quotas,
                prompts,
                choices_each,
                earlier_tokens=computed_tokens,
            )
        except QuotaExceeded:
            self.hold = await self._hold_again(f"{usage_context.request_id}-3", former)
            raise
        self.hold = hold
        self._meter.reopen(usage_context)
        lengths = [len(prompt.token_ids) for prompt in prompts]
        self.prompts = cut
        self.usage = UsageTotal(lengths, choices_each, hold.bound_by, self.usage.work, computed_tokens)
        self._running, self._known = False, asyncio.Event()

    def before_sending(self) -> Awaitable[None]:
        """Wait until the usage record on the disk is recent enough for more of the answer to be sent.

        Raises:
            JournalUnavailable: the disk fails.
        """
        return self._meter.wait_for_commits()

    def on_response_started(self, status: int) -> None:
        """The response has started with this HTTP status."""
        self._meter.status_sent = status

    def record_sent(self) -> None:
        """Everything that `usage` has counted was written to the client's socket."""
        self._meter.advance(self.usage.progress)

    def on_aborted(self, choice: int, usage: Usage) -> None:
        """The engine's report for a choice that was not read to its end, or not sent."""
        self.usage.on_aborted(choice, usage)
        if self.usage.settled:
            self._known.set()

    async def complete(self) -> None:
        """Close the usage record and settle, once all choices have ended. On return the record is on the disk and the
        holds are free, so the client may have the end of its answer.

        Raises:
            JournalUnavailable: the record is not on the disk, so the client must not have the rest.
        """
        await self._meter.close(self.usage.progress, self.usage.work, self.usage.ending)
        await self._settle()

    async def end(self, ending: Ending, http_status: int) -> None:
        """End the request, early unless it is complete. `http_status`: of a response that has not started. Idempotent.
        A cancelled caller stops waiting for the engine; the request is still journalled and settled."""
        try:
            if not self._meter.closed:
                await self._wait_for_usage()
        finally:
            if not self._meter.closed:
                self._meter.abandon(self.usage.progress, self.usage.work, ending, http_status)
            await self._settle()

    async def _wait_for_usage(self) -> None:
        """Wait for the engine's report on each choice, up to `USAGE_TIMEOUT_S`."""
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
        """Commit what was used and free the rest, once, even if the caller is cancelled."""
        if self._settled is None:
            self._settled = asyncio.create_task(self._commit())
        if not self._settled.done():
            await asyncio.shield(self._settled)

    async def _commit(self) -> None:
        """Computed tokens count against limits, though only sent ones are billed."""
        if tokens := self._counted_tokens():
            await self._limiter.settle(self.hold, tokens, self._meter.billed_nanodollars)
        else:
            await self._limiter.release(self.hold)

    def _counted_tokens(self) -> int:
        unknown = self._running and not self.usage.settled
        return self.usage.counted_tokens([prompt.max_tokens for prompt in self.prompts] if unknown else ())


@asynccontextmanager
async def admitted(
    services: Services,
    candidate: Candidate,
    choices_each: int,
    on_metered: Callable[[], None],
    minimum_tokens: int = 0,
) -> AsyncIterator[Admission]:
    """Hold prompts and answers of a request against all quotas for the duration of the block, and meter it.

    If a limit has less left than was asked for, the answers are cut to it and end at the token where the limit does. A
    limit with less than `minimum_tokens` left, or than the client asks for if that is less, refuses the request.
    `on_metered` is called when the usage record is open.

    Raises:
        QuotaExceeded: a limit refuses the request. StoreAway: the limits cannot be checked.
        JournalUnavailable: the usage record cannot be opened.
    """
    limiter, usage_context, prompts = services.limiter, candidate.usage_context, candidate.prompts
    hold, cut = await _hold(
        limiter, usage_context.request_id, usage_context.price, candidate.quotas, prompts, choices_each, minimum_tokens
    )
    try:
        meter = Meter(services.usage_log or services.journal, usage_context)
    except BaseException:
        await asyncio.shield(limiter.release(hold))
        raise
    on_metered()
    lengths = [len(prompt.token_ids) for prompt in prompts]
    admission = Admission(cut, UsageTotal(lengths, choices_each, hold.bound_by), hold, meter, limiter)
    ending, status, path = Ending.ERROR, HTTPStatus.INTERNAL_SERVER_ERROR.value, usage_context.endpoint
    try:
        yield admission
    except ClientGone:
        ending, status = Ending.CANCELLED, CLIENT_CLOSED_REQUEST
        raise
    except asyncio.CancelledError:  # only a shutdown cancels
        ending, status = Ending.INTERRUPTED, status_of(path, shutting_down())
        raise
    except Exception as error:
        status = status_of(path, as_api_error(error) or internal_error())
        raise
    finally:
        await admission.end(ending, status)


async def _hold(
    limiter: Limiter,
    hold_id: str,
    price: Price,
    quotas: Sequence[Quota],
    prompts: Sequence[PreparedPrompt],
    choices_each: int,
    minimum_tokens: int = 0,
    earlier_tokens: int = 0,
) -> tuple[Hold, Sequence[PreparedPrompt]]:
    """The hold, and the prompts with their answers cut to it. `earlier_tokens`: computed by another model, counted
    against limits and not billed."""
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
    hold = await limiter.hold(hold_id, demands, minimum_tokens=least, desired_tokens=wanted)
    granted = hold.granted_tokens
    return hold, [
        prompt if prompt.max_tokens <= granted else replace(prompt, params=replace(prompt.params, max_tokens=granted))
        for prompt in prompts
    ]
