"""A stand-in for the engine: same interface, deterministic, and every stream that is open can be seen.

Its tokens are bytes. It answers every prompt with `reply`, a byte a token.
"""

import asyncio
import codecs
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import cos, log, sin
from types import MappingProxyType
from typing import Self

from engine.adapters.source import AdapterSource
from engine.errors import EngineError, InvalidParameter, UnservableRequest
from engine.request import (
    Alternative,
    FinishReason,
    PromptInput,
    SamplingParams,
    ServiceClass,
    TextDelta,
    TokenLogprob,
    Usage,
)
from engine.runtime.core import EngineHealth
from engine.runtime.engine_call import EngineCall
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.output_stream import MAX_BATCH_TOKENS
from engine.runtime.reservation import UNKNOWN_PROMPT, ArrivalBook, Reservation
from engine.runtime.streams import AbortListener
from tests.support.fake_model import VOCAB_SIZE, FakeModel


@dataclass(frozen=True)
class Call:
    """One call of `stream`, as it arrived."""

    model: str
    prompt: tuple[int, ...]
    params: SamplingParams
    request_id: str | None
    tenant: str
    service_class: ServiceClass
    continues_text: bool
    adapter: AdapterSource | None = None


class FakeEngine:
    """Set `reply`, `pace_s`, `fail_at` (a token's number) or `crash_at` before a request. `windows`: of each model."""

    def __init__(self, windows: Mapping[str, int] = MappingProxyType({"tiny": 512, "org/tiny-2": 512})) -> None:
        self.models = MappingProxyType({name: FakeModel(name, window) for name, window in windows.items()})
        self.reply: str | bytes = "Hello, world!"
        self.replies: dict[str, str] = {}
        """By model, in place of `reply`."""
        self.sure: dict[str, float] = {}
        """The probability of each token, by model."""
        self.sure_of: dict[int, float] = {}
        """By choice, in place of `sure`."""
        self.failing: set[str] = set()
        """Models that fail at their first token."""
        self.waits_ms: dict[str, int] = {}
        """By model, in place of `wait_ms`."""
        self.pace_s = 0.0
        self.fail_at: int | None = None
        self.failure: Exception = EngineError("NaN in the logits at 0x7f00dead")
        """The error of `fail_at` and `failing`."""
        self.crash_at: int | None = None
        self.computes = True
        """False: requests wait until there is a first token."""
        self.tells = True
        """False: the usage of an aborted request is never reported."""
        self.wait_ms = 0
        self.wait_ms_per_token = 0
        self.wait_ms_per_request = 0
        """For each that was let in and has not ended."""
        self.drain_ms: int | None = None
        """None: as long as the wait of an empty prompt."""
        self.queues: dict[str, int] = {}
        """Requests that wait, by model. Where nothing is said here: those that were let in, if they make others wait;
        or one, if there is a wait."""
        self.slots_of = dict.fromkeys(windows, 4)
        """Slots for adapters, by model."""
        self.books = {name: ArrivalBook(1) for name in windows}
        self.ready = False
        self.calls: list[Call] = []
        self.live: set[int] = set()
        """Streams that are being generated."""
        self.live_of = dict.fromkeys(windows, 0)
        """How many, by model."""
        self.most_reserved = 0
        self.generated = 0
        self.closed = False

    @property
    def health(self) -> EngineHealth:
        return EngineHealth(self.ready, 0, 0.0)

    def start(self) -> None:
        self.ready = True

    def close(self) -> None:
        self.ready = False
        self.closed = True

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        wait_ms = self._drain_ms(model) if self.drain_ms is None else self.waits_ms.get(model, self.wait_ms)
        wait_ms += self.wait_ms_per_token * prompt_tokens
        return PredictedWait(wait_ms * 1_000_000, self._drain_ms(model) * 1_000_000)

    def adapter_slots(self, model: str) -> int:
        return self.slots_of[model]

    def queue_depth(self, model: str) -> int:
        if model in self.queues:
            return self.queues[model]
        return self._let_in(model) if self.wait_ms_per_request else int(self._drain_ms(model) > 0)

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        book = self.books[model]
        reservation = Reservation(0, book.rebook)
        reservation.expect([UNKNOWN_PROMPT])
        self.most_reserved = max(self.most_reserved, book.reserved)
        return reservation

    def reservations(self) -> Mapping[str, int]:
        return {name: book.reserved for name, book in self.books.items()}

    def _drain_ms(self, model: str) -> int:
        if self.drain_ms is not None:
            return self.drain_ms
        return self.waits_ms.get(model, self.wait_ms) + self.wait_ms_per_request * self._let_in(model)

    def _let_in(self, model: str) -> int:
        return self.books[model].by_class[0].requests + self.live_of[model]

    def submit(self, model: str, call: EngineCall) -> "FakeStream":
        choices_each = call.prompts[0].params.n
        streams = [
            self._stream(
                model,
                prompt,
                call.tenant,
                call.service_class,
                _numbered(call.on_abort, i * choices_each),
                call.reservation,
                call.adapter,
            )
            for i, prompt in enumerate(call.prompts)
        ]
        return FakeStream(streams, choices_each)

    def _stream(
        self,
        model: str,
        input: PromptInput,
        tenant: str,
        service_class: ServiceClass,
        on_abort: AbortListener | None,
        reservation: Reservation | None,
        adapter: AdapterSource | None,
    ) -> AsyncGenerator[TextDelta]:
        prompt, params, request_id, continues_text = input
        served = self.models[model]
        if not prompt or len(prompt) + (params.max_tokens != 0) > served.max_model_len:
            raise UnservableRequest("does not fit")
        allowed = params.allowed_token_ids or ()
        for name, ids in (("prompt", prompt), ("logit_bias", params.logit_bias), ("allowed_token_ids", allowed)):
            if any(not 0 <= token_id < VOCAB_SIZE for token_id in ids):
                raise InvalidParameter(name, f"{name} has a token id outside the vocabulary")
        self.calls.append(
            Call(model, tuple(prompt), params, request_id, tenant, service_class, continues_text, adapter)
        )
        return self._generate(len(self.calls), served, tuple(prompt), params, on_abort, reservation)

    async def _generate(
        self,
        number: int,
        model: FakeModel,
        prompt: tuple[int, ...],
        params: SamplingParams,
        on_abort: AbortListener | None,
        reservation: Reservation | None,
    ) -> AsyncGenerator[TextDelta]:
        if reservation is not None:
            self.books[model.name].take(reservation, len(prompt))
        self.live.add(number)
        self.live_of[model.name] += 1
        reply, sure = self.replies.get(model.name, self.reply), self.sure.get(model.name)
        choices = [
            _Choice(index, prompt, params, reply, model.max_model_len, self.sure_of.get(index, sure), self.computes)
            for index in range(params.n)
        ]
        try:
            position = 0
            while open_choices := [choice for choice in choices if not choice.ended]:
                await asyncio.sleep(self.pace_s)
                if position == self.fail_at or model.name in self.failing:
                    raise self.failure
                if position == self.crash_at:
                    raise RuntimeError("secret detail at /srv/engine.py")
                for choice in open_choices:
                    yield choice.step()
                    self.generated += 1
                position += 1
        finally:
            self.live.discard(number)
            self.live_of[model.name] -= 1
            for choice in choices:
                if on_abort is not None and not choice.ended and self.tells:
                    on_abort(choice.index, choice.usage)


def _numbered(on_abort: AbortListener | None, first: int) -> AbortListener | None:
    return None if on_abort is None else lambda index, usage: on_abort(first + index, usage)


class FakeStream:
    """The streams of all prompts as one, which is not read further while `MAX_PENDING` deltas are unread."""

    MAX_PENDING = 128

    def __init__(self, streams: Sequence[AsyncGenerator[TextDelta]], choices_each: int) -> None:
        self._streams = streams
        self._choices_each = choices_each
        self._pending: list[TextDelta] = []
        self._changed = asyncio.Condition()
        self._error: Exception | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._live = len(streams)

    async def __aenter__(self) -> Self:
        self._pumps = [
            asyncio.create_task(self._pump(stream, position * self._choices_each))
            for position, stream in enumerate(self._streams)
        ]
        await asyncio.sleep(0)  # a call is submitted when its stream is entered
        return self

    async def __aexit__(self, *error: object) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)

    async def next_batch(self) -> list[TextDelta]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._pending or self._error is not None or not self._live)
            batch, self._pending = self._pending[:MAX_BATCH_TOKENS], self._pending[MAX_BATCH_TOKENS:]
            self._changed.notify_all()
        if not batch and self._error is not None:
            raise self._error
        return batch

    def fail(self, error: Exception) -> None:
        self._error, self._pending = error, []
        for pump in self._pumps:
            pump.cancel()

    async def _pump(self, stream: AsyncGenerator[TextDelta], first: int) -> None:
        try:
            async for delta in stream:
                async with self._changed:
                    await self._changed.wait_for(lambda: len(self._pending) < self.MAX_PENDING)
                    self._pending.append(replace(delta, index=first + delta.index))
                    self._changed.notify_all()
        except Exception as error:
            self._error = self._error or error
        finally:
            await stream.aclose()
            self._live -= 1
            async with self._changed:
                self._changed.notify_all()


class _Choice:
    def __init__(
        self,
        index: int,
        prompt: tuple[int, ...],
        params: SamplingParams,
        reply: str | bytes,
        window: int,
        sure: float | None,
        computes: bool,
    ) -> None:
        self._computes = computes
        self.index = index
        self._sure = sure
        self._prompt = prompt
        self._params = params
        self._reply = reply.encode() if isinstance(reply, str) else reply
        room = window - len(prompt)
        self._max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._made = 0
        self.ended = False

    def step(self) -> TextDelta:
        prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        if self._made == 0 and self._params.prompt_logprobs is not None and self.index == 0:
            entries = [_logprob(token_id, self._params.prompt_logprobs) for token_id in self._prompt]
            prompt_logprobs = (None, *entries[1:])
        if self._params.pooling is not None:
            return replace(self._end(TextDelta(self.index), FinishReason.STOP), embedding=embedding_of(self._prompt))
        if self._max_tokens == 0:
            return self._end(TextDelta(self.index, prompt_logprobs=prompt_logprobs), FinishReason.LENGTH)
        token = self._reply[self._made]
        self._made += 1
        text = self._decoder.decode(bytes([token]), self._made in (len(self._reply), self._max_tokens))
        self._text += text
        wanted = self._params.logprobs
        delta = TextDelta(
            self.index,
            text=text,
            token_ids=(token,),
            logprobs=() if wanted is None else (_logprob(token, wanted, self._sure),),
            prompt_logprobs=prompt_logprobs,
            cached_tokens=self.usage.cached_tokens,
        )
        for stop in self._params.stop:
            if stop in self._text:
                return replace(self._end(delta, FinishReason.STOP), stop=stop)
        if self._made == len(self._reply):
            return self._end(delta, FinishReason.STOP)
        if self._made == self._max_tokens:
            return self._end(delta, FinishReason.LENGTH)
        return delta

    def _end(self, delta: TextDelta, reason: FinishReason) -> TextDelta:
        self.ended = True
        return TextDelta(
            delta.index,
            delta.text,
            delta.token_ids,
            delta.logprobs,
            delta.prompt_logprobs,
            reason,
            usage=self.usage,
            cached_tokens=self.usage.cached_tokens,
        )

    @property
    def usage(self) -> Usage:
        """Every third token was guessed, and so was another in its place before."""
        return Usage(
            len(self._prompt),
            self._made,
            cached_tokens=1 if self.index == 0 else len(self._prompt),
            engine_ns=1_000 * self._made,
            queue_ns=2_000_000,
            draft_tokens=2 * (self._made // 3),
            accepted_draft_tokens=self._made // 3,
            paused_ns=(self.index + 1) * 4_000_000,
            prefilled_tokens=len(self._prompt) if self._computes or self._made or self.ended else 0,
        )


def embedding_of(prompt: Sequence[int]) -> bytes:
    """Tells prompts apart, of length 1."""
    angle = 0.001 * sum(prompt)
    return struct.pack("<3f", cos(angle), sin(angle), 0.0)


def _logprob(token_id: int, alternatives: int, sure: float | None = None) -> TokenLogprob:
    others = [Alternative((token_id + i) % 256, -0.5 - i) for i in range(alternatives)]
    logprob = -0.5 if alternatives else float("-inf")
    return TokenLogprob(token_id, logprob if sure is None else log(sure), tuple(others))
