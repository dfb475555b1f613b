"""The gateway with its gRPC listener, on free loopback ports of the test's own event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from gateway.app import create_app
from gateway.config.listen_address import ListenAddress
from gateway.config.settings import Settings
from gateway.generation.services import Services
from gateway.generation.stages import Stages
from gateway.grpc.inference_listener import InferenceListener
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.tensors import set_parameters
from gateway.process.listener import bind
from gateway.process.server import Server
from tests.support.gateway import AUTHORISED, KEY

SERVICE = "inference.GRPCInferenceService"
BEARER = (("authorization", f"Bearer {KEY}"),)
START_SECONDS = 30


@dataclass
class GrpcGateway:
    """A gateway that serves. `http`: with the standard tenant's key."""

    server: Server
    services: Services
    listener: InferenceListener
    channel: grpc.aio.Channel
    http: httpx.AsyncClient
    serving: "asyncio.Task[None]"

    async def infer(self, request: pb.ModelInferRequest, metadata: Any = BEARER, **given: Any) -> pb.ModelInferResponse:
        answer = await self.infer_call(request, metadata, **given)
        assert isinstance(answer, pb.ModelInferResponse)
        return answer

    def infer_call(self, request: pb.ModelInferRequest, metadata: Any = BEARER, **given: Any) -> Any:
        return self._method("ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)(
            request, metadata=metadata, **given
        )

    async def ask(self, method: str, request: Any, answer: type, metadata: Any = BEARER) -> Any:
        """Another method of one request and one answer."""
        return await self._method(method, type(request), answer)(request, metadata=metadata, timeout=30)

    def stream(self, metadata: Any = BEARER, **given: Any) -> Any:
        """A call of ModelStreamInfer, to write requests to and read messages from."""
        return self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(metadata=metadata, **given)

    def _method(self, name: str, request: type, answer: type) -> Any:
        return self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,  # type: ignore[attr-defined]
            response_deserializer=answer.FromString,  # type: ignore[attr-defined]
        )


@asynccontextmanager
async def grpc_gateway(
    settings: Settings,
    services: Services,
    *,
    deadline_s: float = 10,
    stall_seconds: float = 30,
    client_options: Any = (),
) -> AsyncIterator[GrpcGateway]:
    stages, ready = Stages.of(services, settings), asyncio.Event()
    listener = InferenceListener(stages, ListenAddress("127.0.0.1", 0), stall_seconds=stall_seconds)
    server = Server(
        create_app(settings, services, stages=stages),
        services.drain,
        delay_s=0,
        deadline_s=deadline_s,
        on_ready=ready.set,
        calls=listener,
    )
    with closing(bind("127.0.0.1", 0)) as socket:
        url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[socket]))
        async with asyncio.timeout(START_SECONDS):
            await ready.wait()
        options = [("grpc.use_local_subchannel_pool", 1), *client_options]
        try:
            async with (
                grpc.aio.insecure_channel(str(listener.address), options=options) as channel,
                httpx.AsyncClient(base_url=url, headers=AUTHORISED, timeout=30) as http,
            ):
                yield GrpcGateway(server, services, listener, channel, http, serving)
        finally:
            server.begin_drain()
            async with asyncio.timeout(deadline_s + START_SECONDS):
                await serving


def infer_request(text: str = "hi", model: str = "tiny", id: str = "", **options: Any) -> pb.ModelInferRequest:
    """With the text as a tensor and the options as parameters."""
    request = pb.ModelInferRequest(model_name=model, id=id)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    set_parameters(request.parameters, options)
    return request


def text_of(response: pb.ModelInferResponse) -> str:
    [output] = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("text_output", "BYTES", [1])
    [text] = output.contents.bytes_contents
    return text.decode()


def sampling(values: Mapping[str, Any]) -> str:
    """The option `sampling_parameters`."""
    return json.dumps(values)
