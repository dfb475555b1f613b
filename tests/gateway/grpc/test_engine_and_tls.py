"""Both services over a real engine: seeds and blocks, and TLS."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.engine import Engine
from engine.workers.tls import TLSFiles
from gateway.config.listen_address import ListenAddress, StatedServerTLS
from gateway.config.settings import Settings
from gateway.config.worker_tls import StatedTLS
from gateway.errors import OperatorError
from gateway.generation.stages import Stages
from gateway.grpc.inference_listener import InferenceListener
from gateway.grpc.protos import inference_pb2 as inference
from gateway.grpc.protos import vllm_engine_pb2 as pb
from gateway.grpc.vllm_listener import VllmListener
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from tests.support.certificates import make_authority
from tests.support.gateway import FakeAuthenticator
from tests.support.grpc_gateway import SERVICE, grpc_gateway, infer_request, text_of
from tests.support.services import services_with
from tests.support.tiny_app import tiny_engine
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import event_of, events_of
from tests.support.waiting import wait_for

LOOPBACK = ListenAddress("127.0.0.1", 0)
ANYWHERE = ListenAddress("0.0.0.0", 0)
OPTIONS: dict[str, Any] = {"seed": 11, "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return make_authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
def real(folder: Path, tmp_path: Path) -> tuple[Engine, Journal, Any]:
    """An engine that the application starts and closes, its journal, and the services."""
    engine, journal = tiny_engine(folder), Journal(tmp_path / "journal.db", interval_ms=5, min_free_bytes=0)
    return engine, journal, services_with(tmp_path, engine, FakeAuthenticator(), journal=journal)


async def test_the_text_of_a_seed_is_http_s(real: tuple[Engine, Journal, Any], settings: Settings) -> None:
    _, journal, services = real
    async with grpc_gateway(settings, services) as gateway:
        body = {"model": "tiny", "prompt": "hello", "temperature": 0.7, **OPTIONS}
        expected = (await gateway.http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        whole = text_of(await gateway.infer(infer_request("hello", temperature=0.7, **OPTIONS)))
        call = gateway.stream()
        await call.write(infer_request("hello", temperature=0.7, stream=True, **OPTIONS))
        await call.done_writing()
        parts = [text_of(message.infer_response) async for message in call]
    assert whole == "".join(parts) == expected
    assert len(parts) > 2
    first, *others = events_of(journal)
    assert {(each.prompt_tokens, each.completion_tokens) for each in others} == {
        (first.prompt_tokens, first.completion_tokens)
    }


async def test_a_cancelled_request_gives_its_blocks_back(real: tuple[Engine, Journal, Any], settings: Settings) -> None:
    engine, journal, services = real
    async with grpc_gateway(settings, services) as gateway:
        free = engine.stats()["tiny"].free_blocks
        call = gateway.stream()
        await call.write(infer_request("hello", stream=True, **OPTIONS | {"max_tokens": 400}))
        received = len(text_of((await call.read()).infer_response))
        assert engine.stats()["tiny"].free_blocks < free
        call.cancel()
        await wait_for(lambda: engine.stats()["tiny"].free_blocks == free)
        assert not engine.stats()["tiny"].running
        await wait_for(lambda: len(events_of(journal)) == 1)
    event = event_of(journal)
    assert (event.finish_reason, received > 0) == (Ending.CANCELLED, True)
    assert 0 < event.completion_tokens < 400
    assert event.cost_nanodollars > 0


@asynccontextmanager
async def secured(
    listener: InferenceListener | VllmListener, credentials: grpc.ChannelCredentials
) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(str(listener.address), credentials, options=options) as channel:
        yield channel


def client_credentials(files: TLSFiles, *, with_certificate: bool) -> grpc.ChannelCredentials:
    own = (files.key.read_bytes(), files.certificate.read_bytes()) if with_certificate else (None, None)
    return grpc.ssl_channel_credentials(files.authority.read_bytes(), *own)


async def test_the_gateway_shows_its_certificate(services, tmp_path: Path, authority: TLSFiles) -> None:
    tls = StatedServerTLS(certificate=authority.certificate, key=authority.key)
    stages = Stages.of(services, Settings(data_dir=tmp_path, grpc_tls=tls))
    listener = InferenceListener(stages, LOOPBACK)
    await listener.start(set())
    try:
        async with secured(listener, client_credentials(authority, with_certificate=False)) as channel:
            live = channel.unary_unary(
                f"/{SERVICE}/ServerLive", response_deserializer=inference.ServerLiveResponse.FromString
            )
            assert (await live(b"", timeout=10)).live
        async with grpc.aio.insecure_channel(str(listener.address)) as channel:
            plain = channel.unary_unary(f"/{SERVICE}/ServerLive")
            assert await plain(b"", timeout=5).code() != grpc.StatusCode.OK
    finally:
        await listener.aclose()


async def test_several_gateway_processes_share_a_port_and_other_servers_do_not(services, tmp_path: Path) -> None:
    def stages_of(processes: int) -> Stages:
        return Stages.of(services, Settings(data_dir=tmp_path, gateway_processes=processes))

    one = InferenceListener(stages_of(2), LOOPBACK)
    other = InferenceListener(stages_of(2), one.address)
    try:
        assert other.address == one.address
        with pytest.raises(OperatorError, match="cannot listen"):
            InferenceListener(stages_of(1), one.address)
    finally:
        await one.aclose()
        await other.aclose()


async def test_without_a_certificate_the_gateway_listens_on_loopback(services, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="set grpc_tls"):
        InferenceListener(Stages.of(services, Settings(data_dir=tmp_path)), ANYWHERE)
    missing = StatedServerTLS(certificate=tmp_path / "none.pem", key=tmp_path / "none.key")
    with pytest.raises(OperatorError, match=r"grpc_tls: .*none"):
        InferenceListener(Stages.of(services, Settings(data_dir=tmp_path, grpc_tls=missing)), LOOPBACK)
    behind_a_proxy = InferenceListener(Stages.of(services, Settings(data_dir=tmp_path, grpc_tls="off")), ANYWHERE)
    await behind_a_proxy.aclose()


@pytest.fixture
def started(folder: Path) -> Iterator[Engine]:
    with tiny_engine(folder) as engine:
        yield engine


async def test_a_worker_knows_callers_by_their_certificates(
    started: Engine, folder: Path, tmp_path: Path, authority: TLSFiles
) -> None:
    tls = StatedTLS(certificate=authority.certificate, key=authority.key, ca=authority.authority)
    listener = VllmListener(Settings(data_dir=tmp_path, worker_tls=tls), started, LOOPBACK)
    await listener.start()
    request = pb.GenerateRequest(
        request_id="r", stream=True, sampling_params=pb.SamplingParams(max_tokens=400, ignore_eos=True)
    )
    request.tokenized.input_ids.extend([1, 5, 9])
    known = client_credentials(authority, with_certificate=True)
    try:
        async with secured(listener, known) as one, secured(listener, known) as another:
            call = generate(one, request)
            assert (await call.read()).chunk.token_ids
            abort = another.unary_unary("/vllm.grpc.engine.VllmEngine/Abort")
            await abort(pb.AbortRequest(request_ids=["r"]).SerializeToString(), timeout=10)
            while (message := await call.read()) is not grpc.aio.EOF:
                last = message
            assert last.complete.finish_reason == "abort"
        async with secured(listener, client_credentials(authority, with_certificate=False)) as stranger:
            assert await generate(stranger, request, timeout=5).code() != grpc.StatusCode.OK
    finally:
        await asyncio.wait_for(listener.aclose(), 10)


def generate(channel: grpc.aio.Channel, request: pb.GenerateRequest, **given: Any) -> Any:
    return channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )(request, **given)
