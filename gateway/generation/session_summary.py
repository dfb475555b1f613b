"""A summary of a session's oldest turns, written by a model: a request of its own, held, metered and billed."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.types import Receive

from engine.request import SamplingParams
from engine.runtime.reservation import Reservation
from engine.text.least_tokens import TooManyTokens
from gateway.admission.book import limits_for
from gateway.common.ids import new_event_id
from gateway.common.timestamps import unix_ms
from gateway.config.settings import Settings
from gateway.generation.admit import Admission, admitted
from gateway.generation.deltas import reading
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt, encode
from gateway.generation.request import Conversation
from gateway.generation.service_classes import TierClass, TierClasses
from gateway.generation.services import Services
from gateway.generation.shed import confirm, reserve
from gateway.generation.text_pool import TextLane
from gateway.generation.wire import new_id
from gateway.metering.journal.opening import Opening
from gateway.routing.reason import RouteReason
from gateway.sessions.history import Message
from gateway.tenancy.records import Principal

SUMMARY_TOKENS = 256
SUMMARY_DEADLINE_S = 30.0
SUMMARY_ID_PREFIX = "sessionsum-"
"""What the id of a summary's usage event begins with."""

_INSTRUCTION = (
    "You keep the memory of a conversation between a user and an assistant. Write a summary of the part that follows, "
    "in at most 120 words: names, facts, numbers, what was decided and what is still open. Write nothing else."
)


class NoSummary(Exception):
    """The model wrote nothing, or its window takes nothing of what there is to sum up."""


@dataclass(frozen=True, slots=True)
class Summary:
    """`request_id` is that of its usage event."""

    text: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Asker:
    """Who is asking, in which class it is served, and where its client is listened for."""

    caller: Principal
    serving: TierClass
    receive: Receive


class Summariser:
    """Has summaries written by the small model that stands beside the one that serves, or else by that one itself; for
    a key that may not use the small one, too."""

    def __init__(self, services: Services, settings: Settings) -> None:
        self._services = services
        self._small_models = settings.small_models
        self._classes = TierClasses(settings)

    def of(self, model: ServedModel, asker: Asker) -> Callable[[str | None, Sequence[Message]], Awaitable[Summary]]:
        """What sums up a conversation that this model serves, as long as the asker's client is there."""

        async def summarise(former: str | None, messages: Sequence[Message]) -> Summary:
            """
            Raises:
                ClientGone: nobody waits for it any more.
                Exception: whatever a request may fail with; TimeoutError, NoSummary.
            """
            return await self._write(self._writer(model, asker.caller), former, messages, asker)

        return summarise

    def _writer(self, model: ServedModel, caller: Principal) -> ServedModel:
        small = self._services.engine.models.get(self._small_models.get(model.name, ""))
        return small if small is not None and caller.may_use(small.name) else model

    async def _write(
        self, model: ServedModel, former: str | None, messages: Sequence[Message], asker: Asker
    ) -> Summary:
        caller, serving = asker.caller, asker.serving
        own = self._classes.of_tier(caller.tier)
        limits = limits_for(caller, model.name, model.windows[serving.name], own.limits)
        lane = TextLane(self._services.texts, caller.tenant_id, asker.receive)
        token_ids = await _prompt(model, former, messages, limits.context_tokens - SUMMARY_TOKENS, lane)
        params = SamplingParams(max_tokens=SUMMARY_TOKENS, temperature=0.0)
        prompt = PreparedPrompt(token_ids, params, None, continues_text=False)
        opening = self._opening(caller, serving, model)
        engine, limiter, journal = self._services.engine, self._services.limiter, self._services.journal
        spread = random.random()
        with reserve(engine, model.name, serving, spread) as reservation:
            confirm(reservation, engine, model.name, serving, [prompt], spread)
            async with admitted(limiter, journal, opening, limits.quotas, [prompt], 1) as admission:
                async with asyncio.timeout(SUMMARY_DEADLINE_S):
                    text = await self._answer(admission, opening, asker, reservation)
                await admission.complete()
        if not text.strip():
            raise NoSummary
        return Summary(text.strip(), opening.request_id)

    async def _answer(self, admission: Admission, opening: Opening, asker: Asker, reservation: Reservation) -> str:
        [prompt] = admission.prompts
        stream = self._services.engine.stream(
            opening.served_model,
            prompt.token_ids,
            prompt.params,
            request_id=opening.request_id,
            tenant=opening.tenant_id,
            service_class=asker.serving.engine_class,
            on_abort=admission.aborted,
            reservation=reservation,
        )
        admission.started()
        text = []
        async with reading([stream], 1, asker.receive) as deltas:
            while batch := await deltas.next_batch():
                for choice, delta in batch:
                    admission.usage.saw(choice, delta)
                    text.append(delta.text)
        if not admission.usage.ended:
            raise NoSummary
        return "".join(text)

    def _opening(self, caller: Principal, serving: TierClass, model: ServedModel) -> Opening:
        now = datetime.now(UTC)
        return Opening(
            event_id=new_event_id(),
            request_id=new_id(SUMMARY_ID_PREFIX),
            tenant_id=caller.tenant_id,
            key_id=caller.key_id,
            tier=caller.tier,
            tier_served=serving.name,
            requested_model=model.name,
            routed_model=model.name,
            served_model=model.name,
            model_version=model.version,
            route_reason=RouteReason.SESSION_SUMMARY.value,
            price=self._services.prices.price_of(model.name, serving.name, now),
            opened_ms=unix_ms(now),
        )


async def _prompt(
    model: ServedModel, former: str | None, messages: Sequence[Message], room_tokens: int, lane: TextLane
) -> Sequence[int]:
    """What is to be summed up, as far as the model's window takes it: the newest half, quarter, ... of the messages.

    Raises:
        NoSummary: it takes nothing.
    """
    while messages:
        with suppress(TooManyTokens):
            [token_ids] = await encode([_conversation(former, messages)], model.text, lane, most_tokens=room_tokens)
            if len(token_ids) <= room_tokens:
                return token_ids
        messages = messages[(len(messages) + 1) // 2 :]
    raise NoSummary


def _conversation(former: str | None, messages: Sequence[Message]) -> Conversation:
    parts = [] if former is None else [f"Summary of what came before: {former}"]
    parts += [f"{message['role']}: {_text_of(message)}" for message in messages]
    return Conversation(
        messages=({"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": "\n\n".join(parts)})
    )


def _text_of(message: Message) -> str:
    """What it says, calls of tools included."""
    content = message["content"]
    said = [part["text"] for part in content] if isinstance(content, list) else [content] if content else []
    called = (call["function"] for call in message.get("tool_calls", ()))
    return "\n".join([*said, *(f"{each['name']}({json.dumps(each['arguments'])})" for each in called)])
