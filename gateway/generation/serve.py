"""One prepared request through the engine and out to the client, streamed or whole."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Send

from engine.request import ServiceClass, TextDelta, TokenLogprob
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener
from gateway.generation.admit import Admission
from gateway.generation.deltas import ChoiceDelta, DeltaStream, reading
from gateway.generation.engine_client import EngineClient
from gateway.generation.measurement import Measurement
from gateway.generation.memory import Memory
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.session_stage import SessionTurn
from gateway.generation.usage import UsageTotal
from gateway.generation.wire import Wire
from gateway.http.errors import APIError, ClientGone, as_api_error, internal_error, shutting_down
from gateway.http.responses import encoded_headers, send_body
from gateway.http.undisturbed import undisturbed
from gateway.speech.reasoning import ReasoningTally

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A request ready to run: for whom, what to generate, how to spell what comes."""

    id: str
    tenant_id: str
    model: str
    """The served one."""
    service_class: ServiceClass
    request: GenerationRequest
    admission: Admission
    reservation: Reservation
    """Its place in the model's queue, until it is submitted."""
    wire: Wire
    measurement: Measurement
    reasoning: ReasoningTally
    headers: Mapping[str, str]
    turn: SessionTurn | None = None
    """Of the session that it goes on with, if it does."""
    memory: Memory | None = None
    """The endpoint's own, if it has one."""

    @property
    def prompts(self) -> Sequence[PreparedPrompt]:
        return self.admission.prompts

    @property
    def usage(self) -> UsageTotal:
        return self.admission.usage

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.request.params.n

    def sent_headers(self) -> dict[str, str]:
        """With what is known when they are sent of what is remembered."""
        remembering = [each for each in (self.turn, self.memory) if each is not None]
        return {**self.headers, **{name: value for each in remembering for name, value in each.headers().items()}}


async def deliver(answer: Answer, streams: Sequence[AsyncGenerator[TextDelta]], receive: Receive, send: Send) -> None:
    """Send what comes from `streams`, one for each prompt, as long as the client is there.

    Raises:
        ClientGone: the client hung up.
        Exception: whatever else went wrong. If the stream had begun, its client knows already.
    """
    async with reading(streams, answer.request.params.n, receive) as deltas:
        if answer.request.stream:
            await _send_stream(answer, deltas, send)
        else:
            await _send_whole(answer, deltas, send)


async def submit(
    answer: Answer, engine: EngineClient, prompts: Sequence[PreparedPrompt]
) -> list[AsyncGenerator[TextDelta]]:
    """Submit all prompts, or none."""
    streams: list[AsyncGenerator[TextDelta]] = []
    try:
        for position, prompt in enumerate(prompts):
            stream = engine.stream(
                answer.model,
                prompt.token_ids,
                prompt.params,
                request_id=f"{answer.id}-{position}",
                tenant=answer.tenant_id,
                service_class=answer.service_class,
                continues_text=prompt.continues_text,
                on_abort=_listener(answer, position * answer.request.params.n),
                reservation=answer.reservation,
            )
            streams.append(stream)
    except Exception:
        for stream in streams:
            await stream.aclose()
        raise
    answer.admission.started()
    return streams


def _listener(answer: Answer, first_choice: int) -> AbortListener:
    return lambda index, usage: answer.admission.aborted(first_choice + index, usage)


async def _send_stream(answer: Answer, deltas: DeltaStream, send: Send) -> None:
    """Server-sent events, all that is ready in each write. What fails before the first is an HTTP error, what
    fails later the last event."""
    batch = await deltas.next_batch()
    headers = [*_STREAM_HEADERS, *encoded_headers(answer.sent_headers())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    wire, beginning = answer.wire, answer.wire.start()
    try:
        while batch:
            _count(answer, batch)
            events = beginning + b"".join([wire.events(choice, delta) for choice, delta in batch])
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
                deltas.check_client()
                answer.admission.sent()
                beginning = b""
            batch = await deltas.next_batch()
        await _finish(answer)
    except ClientGone:
        raise
    except (Exception, asyncio.CancelledError) as error:
        await send({"type": "http.response.body", "body": wire.failure(_last_word(error))})
        raise
    end = wire.end(answer.usage)
    if answer.turn is not None and not answer.turn.kept:
        end = b": session turn not kept\n\n" + end
    await send({"type": "http.response.body", "body": end})


async def _send_whole(answer: Answer, deltas: DeltaStream, send: Send) -> None:
    by_choice: list[list[TextDelta]] = [[] for _ in range(answer.choices)]
    while batch := await deltas.next_batch():
        _count(answer, batch)
        for choice, delta in batch:
            by_choice[choice].append(delta)
    choices = [_joined(choice, parts) for choice, parts in enumerate(by_choice)]
    await undisturbed(_send_finished(answer, choices, send))


async def _send_finished(answer: Answer, choices: Sequence[TextDelta], send: Send) -> None:
    await _finish(answer, choices)
    await send_body(send, 200, answer.wire.body(choices, answer.usage), answer.sent_headers())


def _count(answer: Answer, batch: Sequence[ChoiceDelta]) -> None:
    answer.measurement.saw(batch)
    for choice, delta in batch:
        answer.usage.saw(choice, delta, answer.reasoning.count(choice, delta.token_ids))
        if answer.turn is not None:
            answer.turn.saw(delta)
    answer.usage.ttft_ms = answer.measurement.ttft_ms


async def _finish(answer: Answer, choices: Sequence[TextDelta] = ()) -> None:
    """The streams ended: so must have all choices. It is billed, what was held is free, and what is remembered is
    stored, before the client knows. `choices` are those of a whole answer."""
    ended = len(answer.usage.ended)
    if ended != answer.choices:
        raise RuntimeError(f"the engine ended {ended} of {answer.choices} choices")
    answer.measurement.used(answer.usage)
    await answer.admission.complete()
    if answer.turn is not None:
        await answer.turn.keep()
    if answer.memory is not None:
        await answer.memory.keep(choices, answer.usage)


def _last_word(error: Exception | asyncio.CancelledError) -> APIError:
    """What the client of a broken stream is told. Only a shutdown cancels."""
    if isinstance(error, asyncio.CancelledError):
        return shutting_down()
    return as_api_error(error) or internal_error()


def _joined(choice: int, parts: Sequence[TextDelta]) -> TextDelta:
    """A choice's deltas as one."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    for part in parts:
        prompt_logprobs = prompt_logprobs or part.prompt_logprobs
    return TextDelta(
        choice,
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        prompt_logprobs=prompt_logprobs,
        finish_reason=parts[-1].finish_reason,
        stop=parts[-1].stop,
        usage=parts[-1].usage,
    )
