"""The gateway's gRPC server: `inference.GRPCInferenceService`, in the process and on the event loop of HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from gateway.config.listen_address import ListenAddress
from gateway.generation.health import is_ready
from gateway.generation.stages import Stages
from gateway.grpc.addresses import gateway_credentials
from gateway.grpc.asgi_call import AsgiCall
from gateway.grpc.call_context import Context, at_deadline, metadata_of
from gateway.grpc.grpc_server import GrpcServer, Handler
from gateway.grpc.inference_app import (
    MODEL_INFER,
    MODEL_METADATA,
    MODEL_READY,
    MODEL_STREAM_INFER,
    inference_app,
    server_metadata,
)
from gateway.grpc.inference_stream import InferStream
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.statuses import CallError, code_of, metadata_of_headers, trailers_of
from gateway.http.bounds import MAX_STALLED_SECONDS
from gateway.http.errors import shutting_down

FLUSH_S = 1.0
"""Time at the end of a drain in which clients may read their last messages."""

Respond = Callable[[Any, Context], Awaitable[bytes]]

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class InferenceListener:
    """Bound when it is made. Its requests are tasks among those of the HTTP server, which waits for them when it drains
    and cuts them off at its deadline."""

    def __init__(self, stages: Stages, address: ListenAddress, *, stall_seconds: float = MAX_STALLED_SECONDS) -> None:
        """
        Raises:
            OperatorError: the address or a certificate cannot be used.
        """
        self._services = stages.services
        self._app = inference_app(stages)
        self._stall_seconds = stall_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[InferStream] = set()
        self._draining = False
        self._server = GrpcServer(
            _SERVICE,
            self._handlers(),
            address,
            gateway_credentials(stages.settings, address),
            max_message_bytes=stages.settings.max_body_bytes,
            is_serving=self._is_ready,
            shares_port=stages.settings.gateway_processes > 1,
        )

    @property
    def address(self) -> ListenAddress:
        """With the port that was selected."""
        return self._server.address

    async def start(self, tasks: set[asyncio.Task[None]]) -> None:
        """Serve; the task of each request is in `tasks` while it runs."""
        self._tasks = tasks
        await self._server.start()

    def drain(self) -> None:
        """End streams as soon as their requests have ended. Idempotent."""
        if not self._draining:
            self._draining = True
            for stream in self._streams:
                stream.drain()

    async def aclose(self) -> None:
        """Stop listening; the requests have ended. Idempotent."""
        await self._server.stop(FLUSH_S)

    def _handlers(self) -> dict[str, Handler]:
        unary: dict[str, tuple[Respond, type[Any]]] = {
            "ServerLive": (self._server_live, pb.ServerLiveRequest),
            "ServerReady": (self._server_ready, pb.ServerReadyRequest),
            "ServerMetadata": (self._server_metadata, pb.ServerMetadataRequest),
            "ModelReady": (self._respond(MODEL_READY), pb.ModelReadyRequest),
            "ModelMetadata": (self._respond(MODEL_METADATA), pb.ModelMetadataRequest),
            "ModelInfer": (self._respond(MODEL_INFER), pb.ModelInferRequest),
        }
        handlers: dict[str, Handler] = {
            name: grpc.unary_unary_rpc_method_handler(respond, request_deserializer=request.FromString)
            for name, (respond, request) in unary.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._model_stream_infer,
            request_deserializer=pb.ModelInferRequest.FromString,
        )
        return handlers

    def _is_ready(self) -> bool:
        services = self._services
        return not services.drain.begun and is_ready(services.engine, services.journal)

    async def _server_live(self, request: pb.ServerLiveRequest, context: Context) -> bytes:
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def _server_ready(self, request: pb.ServerReadyRequest, context: Context) -> bytes:
        return pb.ServerReadyResponse(ready=self._is_ready()).SerializeToString()

    async def _server_metadata(self, request: pb.ServerMetadataRequest, context: Context) -> bytes:
        return server_metadata().SerializeToString()

    def _respond(self, path: str) -> Respond:
        """The handler of a method with one request and one answer."""

        async def respond(request: Any, context: Context) -> bytes:
            call = AsgiCall(path, metadata_of(context), request)
            running = self._start(call)
            with at_deadline(context, call.hang_up):
                try:
                    await asyncio.shield(running)
                except asyncio.CancelledError:
                    call.hang_up()
                    raise
            await _require_answer(call, context)
            await context.send_initial_metadata(metadata_of_headers(call.headers))
            return call.body

        return respond

    async def _model_stream_infer(self, requests: AsyncIterator[pb.ModelInferRequest], context: Context) -> None:
        stream = InferStream(MODEL_STREAM_INFER, metadata_of(context), context, self._start, self._stall_seconds)
        if self._draining:
            stream.drain()
        self._streams.add(stream)
        try:
            with at_deadline(context, stream.hang_up):
                has_ended = await stream.run(requests)
        finally:
            self._streams.discard(stream)
        if not has_ended:
            answer = shutting_down()
            error = CallError.of(answer)
            await context.abort(code_of(error.status), error.text, trailers_of(error, answer.headers))

    def _start(self, call: AsgiCall) -> "asyncio.Task[None]":
        task = asyncio.create_task(call.run(self._app), name="gRPC request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _require_answer(call: AsgiCall, context: Context) -> None:
    """Ends the call with a status, unless there is an answer."""
    if call.error is not None:
        error = call.error
        await context.abort(code_of(error.status), error.text, trailers_of(error, call.headers))
    elif call.is_gone:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline has passed.")
