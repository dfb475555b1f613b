"""An answer on its way to the client: streamed as server-sent events, or sent as a whole."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Send

from gateway.generation.conversation_hook import ConversationHook
from gateway.generation.engine_client import ServedModel
from gateway.generation.output_parsing import output_parser
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseFormatter, ResponseMeta
from gateway.generation.route_stage import RouteStage, route_headers
from gateway.generation.run import Run
from gateway.generation.service_classes import echoed
from gateway.generation.session_turn import SessionTurn
from gateway.http.errors import APIError, ClientGone, as_api_error, internal_error, shutting_down
from gateway.http.rate_headers import rate_headers
from gateway.http.responses import encoded_headers, send_body
from gateway.speech.output_parser import OutputParser, ParsedDelta

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

MakeFormatter = Callable[
    [ResponseMeta, GenerationRequest, ServedModel, Sequence[PreparedPrompt]],
    ResponseFormatter,
]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The parts that sending an answer needs. `turn` is that of the request's session, `hook` the endpoint's own
    memory."""

    request: GenerationRequest
    formatter: MakeFormatter
    routes: RouteStage
    send: Send
    turn: SessionTurn | None = None
    hook: ConversationHook | None = None


class ResponseSink:
    """A `Sink` that formats an answer for the client and has it remembered before the client has its last byte."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._send = delivery.send
        self._turn = delivery.turn
        self._run: Run
        self._formatter: ResponseFormatter

    def on_admitted(self, run: Run) -> OutputParser:
        delivery, candidate = self._delivery, run.candidate
        request, model = delivery.request, candidate.model
        meta = ResponseMeta(
            run.context.id, candidate.answer_model, echoed(run.context.client.serving, request.service_tier)
        )
        self._run = run
        self._formatter = delivery.formatter(meta, request, model, run.prompts)
        delivery.routes.record_selected(candidate.route)
        return output_parser(meta.id, request, model, run.prompts)

    def _headers(self) -> dict[str, str]:
        """With what is known of the turn and the hook when they are sent."""
        headers = rate_headers(self._run.admission.hold.states) | route_headers(self._run.candidate.route)
        for remembered in (self._turn, self._delivery.hook):
            if remembered is not None:
                headers |= remembered.headers()
        return headers

    async def _remember(self, choices: Sequence[ParsedDelta] = ()) -> None:
        """`choices` are those of an answer that is sent as a whole."""
        if self._turn is not None:
            await self._turn.keep()
        if self._delivery.hook is not None:
            await self._delivery.hook.keep(choices, self._run.usage)
        candidate = self._run.candidate
        self._delivery.routes.record_answered(candidate.route, candidate.usage_context, self._run.usage.progress)


class StreamSink(ResponseSink):
    """Server-sent events, all that is ready in each write. What fails before the first delta is an HTTP error, what
    fails later the last event."""

    _begun = False
    _ended = False

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        await self._run.admission.before_sending()
        beginning = b""
        if not self._begun:
            self._begun = True
            headers = [*_STREAM_HEADERS, *encoded_headers(self._headers())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self._run.admission.on_response_started(200)
            beginning = self._formatter.start()
        if self._turn is not None:
            self._turn.on_outputs(outputs)
        events = beginning + b"".join([self._formatter.events(output) for output in outputs])
        if events:
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
        return bool(events)

    async def on_billed(self) -> None:
        await self._remember()
        self._ended = True
        await self._send({"type": "http.response.body", "body": self._end()})

    def _end(self) -> bytes:
        end = self._formatter.end(self._run.usage)
        if self._turn is not None and not self._turn.kept:
            end = b": session turn not kept\n\n" + end
        return end

    async def on_failure(self, error: BaseException) -> None:
        if self._begun and not self._ended:
            with suppress(ClientGone):  # the request ends by `error`
                await self._send({"type": "http.response.body", "body": self._formatter.failure(_stream_error(error))})


class WholeSink(ResponseSink):
    """One JSON body, sent when all choices have ended. What fails before is an HTTP error."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._outputs: dict[int, list[ParsedDelta]] = {}

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        for output in outputs:
            self._outputs.setdefault(output.choice, []).append(output)
        if self._turn is not None:
            self._turn.on_outputs(outputs)
        return False

    async def on_billed(self) -> None:
        choices = [ParsedDelta.joined(self._outputs[choice]) for choice in sorted(self._outputs)]
        await self._remember(choices)
        await send_body(self._send, 200, self._formatter.body(choices, self._run.usage), self._headers())

    async def on_failure(self, error: BaseException) -> None:
        pass


def _stream_error(error: BaseException) -> APIError:
    """The error event of a stream that failed. Only a shutdown cancels."""
    if isinstance(error, asyncio.CancelledError):
        return shutting_down()
    return (as_api_error(error) if isinstance(error, Exception) else None) or internal_error()
