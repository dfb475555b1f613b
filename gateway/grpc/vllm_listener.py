"""The gRPC server of `turnpike worker`."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from engine.engine import Engine
from engine.request import Pooling
from gateway.config.listen_address import ListenAddress
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.generation.service_classes import TierClasses
from gateway.grpc.addresses import worker_credentials
from gateway.grpc.grpc_server import GrpcServer, Handler
from gateway.grpc.protos import vllm_engine_pb2 as pb
from gateway.grpc.vllm_service import VllmService

FLUSH_S = 1.0
"""Time in which clients may read the last messages of requests that have ended."""

_POLL_S = 0.05
_SERVICE = pb.DESCRIPTOR.services_by_name["VllmEngine"]


class VllmListener:
    """Bound when it is made."""

    def __init__(self, settings: Settings, engine: Engine, address: ListenAddress) -> None:
        """
        Raises:
            OperatorError: the address or a certificate cannot be used, or there are several models.
        """
        if len(engine.models) != 1:
            names = ", ".join(engine.models)
            raise OperatorError(f"--grpc: its protocol names no model, so there must be one; this worker has {names}")
        [served] = engine.models.values()
        classes = TierClasses(settings)
        pooling = settings.embeddings.get(served.name)
        self._service = VllmService(
            engine,
            served,
            classes.of_tier(classes.default_tier).engine_class,
            None if pooling is None else Pooling(pooling),
        )
        self._server = GrpcServer(
            _SERVICE,
            _handlers(self._service),
            address,
            worker_credentials(settings, address),
            max_message_bytes=settings.max_body_bytes,
            is_serving=lambda: self._service.is_ready,
        )

    @property
    def address(self) -> ListenAddress:
        """With the port that was selected."""
        return self._server.address

    async def start(self) -> None:
        await self._server.start()

    async def drain(self, seconds: float) -> None:
        """Take no new requests, and wait for those that run, for `seconds` at most."""
        self._service.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._service.active:
                    await asyncio.sleep(_POLL_S)

    async def aclose(self) -> None:
        """Stop listening, and cancel what still runs."""
        await self._server.stop(FLUSH_S)


def _handlers(service: VllmService) -> dict[str, Handler]:
    def unary(respond: Any, request: type[Any], answer: type[Any]) -> Handler:
        return grpc.unary_unary_rpc_method_handler(
            respond, request_deserializer=request.FromString, response_serializer=answer.SerializeToString
        )

    return {
        "Generate": grpc.unary_stream_rpc_method_handler(
            service.generate,
            request_deserializer=pb.GenerateRequest.FromString,
            response_serializer=pb.GenerateResponse.SerializeToString,
        ),
        "Embed": unary(service.embed, pb.EmbedRequest, pb.EmbedResponse),
        "Abort": unary(service.abort, pb.AbortRequest, pb.AbortResponse),
        "HealthCheck": unary(service.health_check, pb.HealthCheckRequest, pb.HealthCheckResponse),
        "GetModelInfo": unary(service.model_info, pb.GetModelInfoRequest, pb.GetModelInfoResponse),
        "GetServerInfo": unary(service.server_info, pb.GetServerInfoRequest, pb.GetServerInfoResponse),
    }
