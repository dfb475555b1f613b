"""A gRPC server on one address, with `grpc.health.v1.Health` and server reflection."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gateway.config.listen_address import ListenAddress
from gateway.errors import OperatorError

MAX_STREAMS = 1024
"""Concurrent calls of one connection."""

PING_SECONDS = 30
"""After this time without a byte a client is pinged; one that does not answer for `PING_TIMEOUT_SECONDS` has gone."""
PING_TIMEOUT_SECONDS = 10
MIN_PING_SECONDS = 10
"""Time between the pings of a client, below which its connection is closed."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_HEALTH_SECONDS = 0.1
_MS = 1000

_log = structlog.get_logger("turnpike.grpc")


class GrpcServer:
    """Serves one service. The address is bound when it is made, and served from `start` on."""

    def __init__(
        self,
        service: ServiceDescriptor,
        handlers: Mapping[str, Handler],
        address: ListenAddress,
        credentials: grpc.ServerCredentials | None,
        *,
        max_message_bytes: int,
        is_serving: Callable[[], bool],
        shares_port: bool = False,
    ) -> None:
        """`handlers`: by method. `is_serving`: what health says. `shares_port`: other processes may serve the address,
        too, and the system spreads connections over them.

        Raises:
            OperatorError: the address cannot be used.
        """
        self._service: str = service.full_name
        self._is_serving = is_serving
        self._server = grpc.aio.server(options=_options(max_message_bytes, shares_port=shares_port))
        self._health = health.aio.HealthServicer()
        self._reports: asyncio.Task[None] | None = None
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service, dict(handlers)),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((self._service, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self.address = ListenAddress(address.host, self._bind(address, credentials))

    async def start(self) -> None:
        await self._report()
        await self._server.start()
        self._reports = asyncio.create_task(self._report_always(), name="gRPC health")
        _log.info("serving gRPC", address=str(self.address), service=self._service)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and end those that run after `grace_s`. Idempotent."""
        if self._reports is not None:
            self._reports.cancel()
            await asyncio.wait([self._reports])
        await self._server.stop(grace_s)

    def _bind(self, address: ListenAddress, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise OperatorError(f"cannot listen on {address} for gRPC: {error}") from error
        if not port:
            raise OperatorError(f"cannot listen on {address} for gRPC")
        return int(port)

    async def _report(self) -> None:
        serving = health_pb2.HealthCheckResponse.SERVING
        status = serving if self._is_serving() else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", self._service):
            await self._health.set(name, status)

    async def _report_always(self) -> None:
        was_serving = self._is_serving()
        while True:
            await asyncio.sleep(_HEALTH_SECONDS)
            if self._is_serving() is not was_serving:
                was_serving = not was_serving
                await self._report()


def _options(max_message_bytes: int, *, shares_port: bool) -> Sequence[tuple[str, int]]:
    return (
        ("grpc.so_reuseport", int(shares_port)),  # else a second server on the address fails
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.keepalive_time_ms", PING_SECONDS * _MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * _MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_SECONDS * _MS),
    )
