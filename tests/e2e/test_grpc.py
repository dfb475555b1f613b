"""`turnpike serve` with a gRPC listener, and `turnpike worker --grpc`: as processes, from a call to the drain."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.grpc.protos import inference_pb2 as inference
from gateway.grpc.protos import vllm_engine_pb2 as vllm
from tests.support.grpc_gateway import infer_request, text_of
from tests.support.program import TURNPIKE, running
from tests.support.servers import free_port
from tests.support.tiny_models import make_checkpoint

SETTINGS = {"TURNPIKE_KV_CACHE_BYTES": "8MiB", "TURNPIKE_THREADS": "1"}
START_SECONDS = 60
STOP_SECONDS = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("grpc") / "model", "llama", max_position_embeddings=1024)


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [TURNPIKE, "worker", "--listen", "127.0.0.1:0", *options, "--data-dir", str(folder)]
    process = subprocess.Popen(
        command, env={**os.environ, **SETTINGS}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_serving(channel: grpc.Channel, service: str) -> None:
    stub, deadline = health_pb2_grpc.HealthStub(channel), time.monotonic() + START_SECONDS
    request = health_pb2.HealthCheckRequest(service=service)
    answer = stub.Check(request, wait_for_ready=True, timeout=START_SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert time.monotonic() < deadline


def test_a_gateway_answers_and_drains(model: Path, tmp_path: Path) -> None:
    port = free_port()
    environment = {**SETTINGS, "TURNPIKE_GRPC_LISTEN": f"127.0.0.1:{port}"}
    with (
        running(tmp_path, "--model", f"tiny={model}", environment=environment) as program,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        wait_until_serving(channel, "inference.GRPCInferenceService")
        metadata = (("authorization", f"Bearer {program.key}"),)
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=inference.ModelInferRequest.SerializeToString,
            response_deserializer=inference.ModelInferResponse.FromString,
        )
        request = infer_request("hello", seed=3, max_tokens=7, ignore_eos=True)
        assert text_of(infer(request, metadata=metadata, timeout=30))
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=inference.ModelInferRequest.SerializeToString,
            response_deserializer=inference.ModelStreamInferResponse.FromString,
        )(iter([infer_request("hello", seed=3, max_tokens=700, ignore_eos=True, stream=True)]), metadata=metadata)
        next(stream)
        program.process.send_signal(signal.SIGTERM)
        messages = list(stream)
        assert program.process.wait(STOP_SECONDS) == 0
    last = messages[-1].infer_response.parameters
    assert last["triton_final_response"].bool_param
    assert last["completion_tokens"].int64_param == 700


def test_a_worker_answers_and_drains(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with (
        worker(tmp_path, "--grpc", f"127.0.0.1:{port}", "--model", f"tiny={model}") as process,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        wait_until_serving(channel, "vllm.grpc.engine.VllmEngine")
        generate = channel.unary_stream(
            "/vllm.grpc.engine.VllmEngine/Generate",
            request_serializer=vllm.GenerateRequest.SerializeToString,
            response_deserializer=vllm.GenerateResponse.FromString,
        )
        params = vllm.SamplingParams(max_tokens=700, ignore_eos=True, seed=1)
        stream = generate(vllm.GenerateRequest(text="hello", stream=True, sampling_params=params))
        next(stream)
        process.send_signal(signal.SIGTERM)
        messages = list(stream)
        assert process.wait(STOP_SECONDS) == 0
    assert messages[-1].complete.completion_tokens == 700


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--grpc", "0.0.0.0:0", "--model", "tiny={model}"], "set worker_tls"),
        (["--grpc", "127.0.0.1:0", "--model", "a={model}", "--model", "b={model}"], "names no model"),
        (["--grpc", "nowhere", "--model", "tiny={model}"], "--grpc: an address has the form host:port"),
    ],
)
def test_a_worker_refuses(model: Path, tmp_path: Path, options: list[str], reason: str) -> None:
    stated = [each.format(model=model) for each in options]
    with worker(tmp_path, *stated) as process:
        output, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 1
    assert reason in output.decode()


def test_a_gateway_refuses_an_open_address(model: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **SETTINGS,
        "TURNPIKE_DATA_DIR": str(tmp_path),
        "TURNPIKE_GRPC_LISTEN": "0.0.0.0:0",
        "TURNPIKE_PRICES": json.dumps({"tiny": ["0.1", "0.4"]}),
    }
    command = [TURNPIKE, "serve", "--port", "0", "--model", f"tiny={model}"]
    refused = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
    )
    assert refused.returncode == 1
    assert "set grpc_tls" in refused.stderr
