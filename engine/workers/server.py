"""The worker's side of a connection: an engine that is driven by messages."""

import asyncio
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from engine.engine import Engine
from engine.errors import EngineError, TooManyGrammars
from engine.grammar.spec import GrammarSpec
from engine.memory.request_hashes import hash_prompts
from engine.request import FinishReason, Request, TokenDelta, Usage
from engine.runtime.core import EngineCore
from engine.runtime.loaded_model import ServedModel
from engine.runtime.matchers import assign_matchers
from engine.runtime.submission import requests_of
from engine.workers.frames import ConnectionEnded, FrameReader, FrameSender, receive
from engine.workers.messages import (
    Abort,
    Aborted,
    Accepted,
    Close,
    Deltas,
    Failed,
    FromWorker,
    Load,
    ModelFacts,
    Pause,
    Ready,
    Resume,
    Stats,
    Submit,
    ToWorker,
    WatchPrefixes,
    decode_to_worker,
    encode,
    refusal,
)
from engine.workers.prefix_publishers import PrefixPublishers

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.1
"""Time between two `Stats`."""
GRAMMAR_SECONDS = 0.2
"""Time after which a replay asks again for a place in the queue of its tenant's grammars."""


class WorkerServer:
    """Serves one client with a loaded engine. Its methods run on one event loop unless stated otherwise."""

    def __init__(
        self,
        core: EngineCore,
        models: Mapping[str, ServedModel],
        writer: FrameSender,
        arrivals: Iterator[int] | None = None,
        prefixes: PrefixPublishers | None = None,
    ) -> None:
        """`arrivals`: numbers of requests in the order of their arrival, which all clients of an engine share, as its
        queues are ordered by them. None: it has no other client. `prefixes`: of a worker that publishes its cached
        blocks."""
        self._core = core
        self._prefixes = prefixes
        self._models = models
        self._writer = writer
        self._arrivals = itertools.count() if arrivals is None else arrivals
        self._requests: dict[str, Request] = {}
        """Requests that have not ended, by id. The engine thread removes those that end."""
        self._preparing: dict[str, asyncio.Task[None]] = {}
        """By request id: the call that is not submitted to the engine yet."""
        self._paused: set[str] = set()
        """Requests of these calls that are paused as soon as the engine has them."""

    async def serve(self, connection: socket.socket) -> None:
        """Handle the messages of a socket until the client closes it or the engine ends."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        reader = threading.Thread(
            target=_read, args=(connection, self._post_to(loop), ended, loop), name="turnpike-client", daemon=True
        )
        reader.start()
        await self.report(ended)

    async def report(self, ended: asyncio.Event) -> None:
        """Send the load and the metrics until `ended` is set or the engine ends."""
        ends = [
            self._core.report_load(name, lambda report, name=name: self._send(Load(name, report)))  # type: ignore[misc]
            for name in self._models
        ]
        try:
            while not ended.is_set() and self._core.alive:
                self._send(self._stats())
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await ended.wait()
        finally:
            for end in ends:
                end()
        if not self._core.alive:
            self._send(Failed(EngineError.__name__, "the engine thread has ended"))

    @property
    def is_busy(self) -> bool:
        """Whether requests of this client have not ended."""
        return bool(self._requests)

    def abort_all(self) -> None:
        """The client has gone: end its requests."""
        if self._prefixes is not None:
            self._prefixes.unwatch(self)
        for task in set(self._preparing.values()):
            task.cancel()
        for name in self._models:
            with suppress(EngineError):
                self._core.abort(name, list(self._requests), lambda: None)  # ignores those of other models
        self._requests.clear()

    def _post_to(self, loop: asyncio.AbstractEventLoop) -> Callable[[ToWorker], None]:
        return lambda message: _call_soon(loop, lambda: self.handle(message))

    def handle(self, message: ToWorker) -> None:
        """Carry out a message. An engine that has ended carries out none, and the client learns of its end."""
        with suppress(EngineError):
            match message:
                case Submit():
                    self._submit(message)
                case Pause():
                    self._paused |= self._preparing.keys() & message.request_ids
                    self._core.pause(message.model, message.request_ids)
                case Resume():
                    self._paused -= set(message.request_ids)
                    self._core.resume(message.model, message.request_ids)
                case Abort():
                    self._abort(message)
                case WatchPrefixes():
                    if self._prefixes is not None:
                        self._prefixes.watch(message.model, self, self._send)
                case Close():
                    raise AssertionError("the reader handles it")

    def _submit(self, message: Submit) -> None:
        served = self._models[message.model]
        calls = [requests_of(served, submission, self._arrivals) for submission in message.submissions]
        ids = [request.id for requests in calls for request in requests]
        self._requests |= {request.id: request for requests in calls for request in requests}
        task = asyncio.create_task(self._prepare(message, served, calls))
        self._preparing |= dict.fromkeys(ids, task)

        def on_done(_: asyncio.Task[None]) -> None:
            self._prepared(ids)
            if task.cancelled():
                self._send(refusal(message.call, EngineError("the call was aborted")))

        task.add_done_callback(on_done)

    async def _prepare(self, message: Submit, served: ServedModel, calls: Sequence[Sequence[Request]]) -> None:
        """Compile the grammars of a call and hash its blocks, then submit it."""
        call = message.call
        try:
            for position, requests in enumerate(calls):
                if position:
                    await asyncio.sleep(0)
                if (grammar := requests[0].params.grammar) is not None:
                    await _assign_matchers(served, grammar, requests, waits=message.is_replay)
                if served.prefix_cache:
                    await hash_prompts(requests)
            for requests in calls:  # together, so that they share a step
                self._core.submit(served.name, requests, self._deliver)
            if paused := self._prepared([request.id for requests in calls for request in requests]):
                self._core.pause(served.name, paused)
            self._send(Accepted(call))
        except Exception as error:
            for requests in calls:
                for request in requests:
                    self._requests.pop(request.id, None)
            if self._core.alive:  # else the client computes them elsewhere
                self._send(refusal(call, error))

    def _prepared(self, request_ids: Sequence[str]) -> list[str]:
        """The engine has the requests, or never will. Returns those of them that are to be paused."""
        for request_id in request_ids:
            self._preparing.pop(request_id, None)
        paused = [request_id for request_id in request_ids if request_id in self._paused]
        self._paused.difference_update(paused)
        return paused

    def _abort(self, message: Abort) -> None:
        for request_id in message.request_ids:
            if (task := self._preparing.pop(request_id, None)) is not None:
                task.cancel()
        self._core.abort(message.model, message.request_ids, lambda: self._aborted(message))

    def _aborted(self, message: Abort) -> None:
        """The engine has released the requests. Called on the engine thread."""
        requests = [self._requests.pop(request_id, None) for request_id in message.request_ids]
        usages: dict[str, Usage] = {request.id: request.usage for request in requests if request is not None}
        self._send(Aborted(message.call, usages))

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        """Send the deltas of a step. Called on the engine thread, or on the watchdog's if that hangs.

        The ends that an ended engine gives to its requests are not sent: the client computes them elsewhere.
        """
        if not self._core.alive:
            ends = (FinishReason.ERROR, FinishReason.ABORT)
            deltas = [delta for delta in deltas if delta.finish_reason not in ends]
        for delta in deltas:
            if delta.finish_reason is not None:
                self._requests.pop(delta.request_id, None)
        if deltas:
            self._send(Deltas(deltas))

    def _stats(self) -> Stats:
        health = self._core.health
        return Stats(replace(health, alive=True), {name: self._core.stats(name) for name in self._models})

    def _send(self, message: FromWorker) -> None:
        self._writer.send(encode(message))


def _read(
    connection: socket.socket,
    post: Callable[[ToWorker], None],
    ended: asyncio.Event,
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Read messages until the connection ends. Runs on a thread."""
    reader = FrameReader()
    try:
        while True:
            for payload in receive(connection, reader):
                message = decode_to_worker(payload)
                if isinstance(message, Close):
                    return
                post(message)
    except ConnectionEnded as reason:
        logger.info("the client has gone: %s", reason)
    finally:
        _call_soon(loop, ended.set)


def _call_soon(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(action)


async def _assign_matchers(
    served: ServedModel, grammar: GrammarSpec, requests: Sequence[Request], *, waits: bool
) -> None:
    """As `assign_matchers`. `waits`: for a place in the queue. A stream that has begun is not to end because many of
    its tenant's are replayed together."""
    while True:
        try:
            return await assign_matchers(served, grammar, requests)
        except TooManyGrammars:
            if not waits:
                raise
        await asyncio.sleep(GRAMMAR_SECONDS)


def ready_message(engine: Engine) -> Ready:
    """The models of an engine, as a client has to know them."""
    facts = []
    for served in engine.models.values():
        ranks, load = engine.core.load_of(served.name)
        facts.append(
            ModelFacts(
                name=served.name,
                max_model_len=served.max_model_len,
                windows=dict(served.windows),
                vocab_size=served.vocab_size,
                eos_token_ids=served.eos_token_ids,
                created=served.created,
                version=served.version,
                takes_grammars=served.takes_grammars,
                prefix_cache=served.prefix_cache,
                sampling_defaults=served.sampling_defaults,
                details=served.details,
                adapter_slots=served.adapter_slots,
                ranks=dict(ranks),
                load=load,
            )
        )
    return Ready(facts, dict(engine.hardware), dict(engine.stats()))
