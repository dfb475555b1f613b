"""`vllm.grpc.engine.VllmEngine` over an engine: token ids in or text, token ids out."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import grpc
import numpy as np
import orjson
import structlog

from engine.engine import Engine
from engine.request import Pooling, PromptInput, SamplingParams, ServiceClass
from engine.runtime.engine_call import EngineCall
from engine.runtime.loaded_model import ServedModel
from engine.runtime.output_stream import OutputStream
from gateway.grpc.call_context import Context, caller_of, write_within
from gateway.grpc.protos import vllm_engine_pb2 as pb
from gateway.grpc.statuses import CallError, api_error_of, code_of, trailers_of
from gateway.grpc.vllm_messages import ChoiceMessages
from gateway.grpc.vllm_params import prompt_of, sampling_of
from gateway.http.bounds import MAX_STALLED_SECONDS
from gateway.http.errors import APIError, shutting_down

SERVER_TYPE = "vllm-grpc"
"""The protocol's own name of its servers, by which clients know them."""


_log = structlog.get_logger("turnpike.grpc")


class AbortedByCaller(Exception):
    """The caller has aborted the request."""


class VllmService:
    """The methods. The protocol names no model, so there is one. The handler of a call that is cancelled, or whose
    deadline passes, is cancelled: leaving the stream aborts the request before the next step."""

    def __init__(
        self, engine: Engine, served: ServedModel, service_class: ServiceClass, pooling: Pooling | None
    ) -> None:
        """`pooling`: of embeddings; None: the model does not serve them."""
        self.draining = False
        self._engine = engine
        self._served = served
        self._service_class = service_class
        self._pooling = pooling
        self._started = time.monotonic()
        self._received_at = 0.0
        self._streams: defaultdict[tuple[str, str], set[OutputStream]] = defaultdict(set)
        """The running requests by caller and the caller's id."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._engine.ready and not self.draining

    @property
    def active(self) -> int:
        """Requests that run or wait."""
        return sum(map(len, self._streams.values()))

    async def generate(self, request: pb.GenerateRequest, context: Context) -> None:
        try:
            await self._generate(request, context)
        except Exception as error:
            await _end(context, error)

    async def embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        try:
            return await self._embed(request, context)
        except Exception as error:
            return await _end(context, error)

    async def abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends requests of the same caller; other ids are ignored."""
        for request_id in request.request_ids:
            for stream in tuple(self._streams.get((caller_of(context), request_id), ())):
                stream.fail(AbortedByCaller())
        return pb.AbortResponse()

    async def health_check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        message = "Health" if self.is_ready else "The server is draining" if self.draining else "Engine is not alive"
        return pb.HealthCheckResponse(healthy=self.is_ready, message=message)

    async def model_info(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        served = self._served
        return pb.GetModelInfoResponse(
            model_path=served.name if served.details is None else str(served.details.path),
            is_generation=self._pooling is None,
            max_context_length=served.max_model_len,
            vocab_size=served.vocab_size,
            served_model_name=served.name,
            eos_token_ids=served.eos_token_ids,
            default_sampling_params_json=orjson.dumps(served.sampling_defaults.stated).decode(),
        )

    async def server_info(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(
            active_requests=self.active,
            last_receive_timestamp=self._received_at,
            uptime_seconds=time.monotonic() - self._started,
            server_type=SERVER_TYPE,
        )

    async def _generate(self, request: pb.GenerateRequest, context: Context) -> None:
        self._receive()
        prompt = await prompt_of(request, self._served)
        params = sampling_of(request.sampling_params, self._served)
        stream = self._submit(PromptInput(prompt, params, continues_text=True))
        choices = [ChoiceMessages(index, prompt, is_stream=request.stream) for index in range(params.n)]
        with self._running(caller_of(context), request.request_id, stream):
            try:
                async with stream:
                    while batch := await stream.next_batch():
                        for delta in batch:
                            for message in choices[delta.index].messages(delta):
                                await write_within(context, message, MAX_STALLED_SECONDS)
            except AbortedByCaller:
                for choice in choices:
                    if not choice.ended:
                        await write_within(context, choice.aborted(), MAX_STALLED_SECONDS)

    async def _embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        self._receive()
        if self._pooling is None:
            raise APIError(501, "The model does not serve embeddings.", code="unsupported_model")
        token_ids = list(request.tokenized.input_ids)
        stream = self._submit(PromptInput(token_ids, SamplingParams(max_tokens=0, pooling=self._pooling)))
        vector = b""
        with self._running(caller_of(context), request.request_id, stream):
            try:
                async with stream:
                    while batch := await stream.next_batch():
                        vector = batch[-1].embedding
            except AbortedByCaller:
                raise APIError(409, "The request was aborted.", code="aborted") from None
        values = np.frombuffer(vector, "<f4")
        return pb.EmbedResponse(embedding=values.tolist(), prompt_tokens=len(token_ids), embedding_dim=len(values))

    def _receive(self) -> None:
        self._received_at = time.time()
        if self.draining:
            raise shutting_down()

    def _submit(self, prompt: PromptInput) -> OutputStream:
        return self._engine.submit(self._served.name, EngineCall([prompt], service_class=self._service_class))

    @contextmanager
    def _running(self, caller: str, request_id: str, stream: OutputStream) -> Iterator[None]:
        key = (caller, request_id)
        self._streams[key].add(stream)
        try:
            yield
        finally:
            self._streams[key].discard(stream)
            if not self._streams[key]:
                del self._streams[key]


async def _end(context: Context, error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    answer = api_error_of(error)
    if answer.status >= 500:
        _log.error("request failed", exc_info=error)
    stated = CallError.of(answer)
    await context.abort(code_of(stated.status), stated.text, trailers_of(stated, answer.headers))
    raise AssertionError("abort raises")
