"""Summaries of a session's oldest turns, written by a model. Each is a request of its own: limited, metered, billed."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.request import SamplingParams
from engine.text.least_tokens import TooManyTokens
from gateway.config.settings import Settings
from gateway.generation.context import Client, RequestContext
from gateway.generation.engine_client import EngineClient, ServedModel
from gateway.generation.pipeline import Pipeline
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.prompt_encoding import encode
from gateway.generation.request import Conversation
from gateway.generation.response_format import new_id
from gateway.generation.run import Run
from gateway.generation.text_pool import TextLane, TextPool
from gateway.routing.reason import RouteReason
from gateway.routing.router import Route
from gateway.sessions.history import Message
from gateway.speech.output_parser import OutputParser, ParsedDelta
from gateway.tenancy.records import Principal

SUMMARY_TOKENS = 256
SUMMARY_DEADLINE_S = 30.0
SUMMARY_ID_PREFIX = "sessionsum-"
"""Prefix of the request id of a summary's usage event."""
OPERATION = "session_summary"
"""In metrics, in the place of OpenTelemetry's `gen_ai.operation.name`."""

_INSTRUCTION = (
    "You keep the memory of a conversation between a user and an assistant. Write a summary of the part that follows, "
    "in at most 120 words: names, facts, numbers, what was decided and what is still open. Write nothing else."
)


class NoSummary(Exception):
    """The model wrote nothing, or not one message fits its context window."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary. `request_id`: that of its usage event."""

    text: str
    request_id: str


class Summariser:
    """Has summaries written by the small model of the one that serves. Without a small model, or if the key may not use
    it, the serving model writes them."""

    def __init__(self, engine: EngineClient, texts: TextPool, settings: Settings, pipeline: Pipeline) -> None:
        self._engine = engine
        self._texts = texts
        self._small_models = settings.small_models
        self._pipeline = pipeline

    def of(self, model: ServedModel, client: Client) -> Callable[[str | None, Sequence[Message]], Awaitable[Summary]]:
        """A function that summarises conversations served by `model`, while the client is connected."""

        async def summarise(former: str | None, messages: Sequence[Message]) -> Summary:
            """
            Raises:
                ClientGone: the client disconnected.
                Exception: as any request may fail; TimeoutError, NoSummary.
            """
            return await self._write(self._writer(model, client.principal), former, messages, client)

        return summarise

    def _writer(self, model: ServedModel, principal: Principal) -> ServedModel:
        small = self._engine.models.get(self._small_models.get(model.name, ""))
        return small if small is not None and principal.may_use(small.name) else model

    async def _write(
        self, model: ServedModel, former: str | None, messages: Sequence[Message], client: Client
    ) -> Summary:
        lane = TextLane(self._texts, client.principal.tenant_id, client.receive)

        async def prepare(model: ServedModel, context_tokens: int, may_fall_back: bool) -> list[PreparedPrompt]:
            token_ids = await _prompt(model, former, messages, context_tokens - SUMMARY_TOKENS, lane)
            params = SamplingParams(max_tokens=SUMMARY_TOKENS, temperature=0.0)
            return [PreparedPrompt(token_ids, params, None, continues_text=False)]

        context = RequestContext(
            id=new_id(SUMMARY_ID_PREFIX),
            operation=OPERATION,
            client=client,
            prepare=prepare,
            deadline_s=SUMMARY_DEADLINE_S,
        )
        sink = SummarySink()
        route = Route(model.name, model.name, model.name, RouteReason.SESSION_SUMMARY, model.name)
        await self._pipeline.run(context, route, sink)
        text = "".join(sink.parts).strip()
        if not text:
            raise NoSummary
        return Summary(text, context.id)


class SummarySink:
    """Collects the text."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def on_admitted(self, run: Run) -> OutputParser:
        return OutputParser()

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        self.parts += [output.delta.text for output in outputs]
        return False

    async def on_billed(self) -> None:
        pass

    async def on_failure(self, error: BaseException) -> None:
        pass


async def _prompt(
    model: ServedModel, former: str | None, messages: Sequence[Message], room_tokens: int, lane: TextLane
) -> Sequence[int]:
    """Token ids of the messages to summarise, or of their newest half, quarter, ... that fits `room_tokens`.

    Raises:
        NoSummary: none fits.
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
    """The text of a message, with its tool calls."""
    content = message["content"]
    said = [part["text"] for part in content] if isinstance(content, list) else [content] if content else []
    called = (call["function"] for call in message.get("tool_calls", ()))
    return "\n".join([*said, *(f"{each['name']}({json.dumps(each['arguments'])})" for each in called)])
