"""vLLM's engine protocol over a real engine: its contract, and how requests end."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.engine import Engine
from engine.request import Pooling, SamplingParams
from gateway.config.listen_address import ListenAddress
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.grpc.protos import vllm_engine_pb2 as pb
from gateway.grpc.vllm_listener import VllmListener
from tests.support.tiny_app import tiny_engine
from tests.support.tiny_models import make_checkpoint
from tests.support.waiting import until, wait_for

SERVICE = "vllm.grpc.engine.VllmEngine"
PROMPT = [1, 5, 9, 20, 33, 7, 7, 4]
LONG = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with tiny_engine(folder) as engine:
        yield engine


@pytest.fixture(autouse=True)
def all_blocks_are_free(engine: Engine) -> Iterator[None]:
    yield
    until(lambda: not engine.stats()["tiny"].running and not engine.stats()["tiny"].waiting)


class Worker:
    """Stubs of a listener, on a connection of its own."""

    def __init__(self, listener: VllmListener, channel: grpc.aio.Channel) -> None:
        self.listener = listener
        self.channel = channel

    def generate(self, request: pb.GenerateRequest, **given: Any) -> Any:
        return self.channel.unary_stream(
            f"/{SERVICE}/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )(request, **given)

    async def whole(self, request: pb.GenerateRequest) -> pb.GenerateComplete:
        [response] = [each async for each in self.generate(request)]
        assert response.WhichOneof("response") == "complete"
        return response.complete

    async def ask(self, method: str, request: Any, answer: type[Any]) -> Any:
        return await self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request, timeout=30)

    async def abort(self, *ids: str) -> None:
        await self.ask("Abort", pb.AbortRequest(request_ids=ids), pb.AbortResponse)

    async def active(self) -> int:
        answer = await self.ask("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)
        return int(answer.active_requests)


def connected(listener: VllmListener) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(str(listener.address), options=[("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def working(engine: Engine, folder: Path, **settings: Any) -> AsyncIterator[Worker]:
    listener = VllmListener(Settings(data_dir=folder / "data", **settings), engine, ListenAddress("127.0.0.1", 0))
    await listener.start()
    try:
        async with connected(listener) as channel:
            yield Worker(listener, channel)
    finally:
        await listener.aclose()


def request_of(id: str = "r", *, stream: bool = False, prompt: Any = PROMPT, **params: Any) -> pb.GenerateRequest:
    request = pb.GenerateRequest(request_id=id, stream=stream, sampling_params=pb.SamplingParams(**params))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.tokenized.input_ids.extend(prompt)
    return request


async def test_a_whole_answer_is_the_engines(engine: Engine, folder: Path) -> None:
    [[expected]] = await asyncio.to_thread(engine.generate, "tiny", [PROMPT], SamplingParams(seed=7, max_tokens=12))
    async with working(engine, folder) as worker:
        complete = await worker.whole(request_of(seed=7, max_tokens=12))
    assert tuple(complete.output_ids) == expected.token_ids
    assert complete.finish_reason == expected.finish_reason
    assert (complete.prompt_tokens, complete.completion_tokens) == (len(PROMPT), expected.usage.completion_tokens)


async def test_a_stream_has_the_same_tokens_in_chunks(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        whole = await worker.whole(request_of(seed=7, max_tokens=12, ignore_eos=True))
        *chunks, last = [
            each async for each in worker.generate(request_of(seed=7, max_tokens=12, ignore_eos=True, stream=True))
        ]
    assert {each.WhichOneof("response") for each in chunks} == {"chunk"}
    assert [token for each in chunks for token in each.chunk.token_ids] == list(whole.output_ids)
    assert sum(each.chunk.completion_tokens for each in chunks) == 12
    assert {each.chunk.prompt_tokens for each in chunks} == {len(PROMPT)}
    assert last.complete.output_ids == whole.output_ids
    assert last.complete.finish_reason == "length"


async def test_text_is_encoded_and_stop_strings_are_found_in_the_text(engine: Engine, folder: Path) -> None:
    served = engine.models["tiny"]
    async with working(engine, folder) as worker:
        free = await worker.whole(request_of(prompt="hello", seed=3, max_tokens=40, ignore_eos=True))
        text = served.text.tokenizer.decode(list(free.output_ids))
        stop = text[5:7]
        ended = await worker.whole(request_of(prompt="hello", seed=3, max_tokens=40, ignore_eos=True, stop=[stop]))
    assert free.prompt_tokens == len(served.text.encode("hello"))
    assert (ended.finish_reason, ended.matched_stop_str) == ("stop", stop)
    assert len(ended.output_ids) < len(free.output_ids)


async def test_choices_are_told_apart_by_index(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        request = request_of(n=3, seed=7, max_tokens=6, ignore_eos=True, stream=True)
        responses = [each async for each in worker.generate(request)]
        completes = [each.complete for each in responses if each.WhichOneof("response") == "complete"]
        tokens: dict[int, list[int]] = {}
        for each in responses:
            if each.WhichOneof("response") == "chunk":
                tokens.setdefault(each.chunk.index, []).extend(each.chunk.token_ids)
    assert {each.index: list(each.output_ids) for each in completes} == tokens
    assert tokens.keys() == {0, 1, 2}


async def test_an_absent_temperature_is_the_models_and_zero_is_greedy(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        greedy = [await worker.whole(request_of(temperature=0, seed=seed, max_tokens=8)) for seed in (1, 2)]
        sampled = [await worker.whole(request_of(seed=seed, max_tokens=8)) for seed in (1, 2)]
    assert greedy[0].output_ids == greedy[1].output_ids
    assert sampled[0].output_ids != sampled[1].output_ids


async def test_logprobs_of_answer_and_prompt(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        complete = await worker.whole(
            request_of(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=0)
        )
    output, prompt = complete.output_logprobs, complete.input_logprobs
    assert output.token_ids == complete.output_ids
    assert [each.token_ids[0] for each in output.top_logprobs] == list(complete.output_ids)
    assert [each.values[0] for each in output.top_logprobs] == pytest.approx(list(output.token_logprobs))
    assert list(prompt.token_ids) == PROMPT
    assert [each.HasField("value") for each in prompt.token_logprobs] == [False] + [True] * (len(PROMPT) - 1)
    assert not prompt.top_logprobs


@pytest.mark.parametrize(
    "constraint",
    [
        {"choice": pb.ChoiceConstraint(choices=["red", "green"])},
        {"regex": "[0-9]{3}"},
        {"grammar": 'start: "a" "b"'},
        {"json_schema": json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})},
    ],
)
async def test_constraints_hold(engine: Engine, folder: Path, constraint: dict[str, Any]) -> None:
    async with working(engine, folder) as worker:
        complete = await worker.whole(request_of(seed=1, max_tokens=60, **constraint))
    text = engine.models["tiny"].text.tokenizer.decode(list(complete.output_ids))
    assert complete.finish_reason == "stop"
    match next(iter(constraint)):
        case "choice":
            assert text in ("red", "green")
        case "regex":
            assert len(text) == 3
            assert text.isdecimal()
        case "grammar":
            assert text == "ab"
        case "json_schema":
            assert isinstance(json.loads(text)["a"], bool)


async def test_a_json_object(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        complete = await worker.whole(request_of(seed=1, max_tokens=3, json_object=True))
    assert engine.models["tiny"].text.tokenizer.decode(list(complete.output_ids)).startswith("{")


REFUSED = [
    (request_of(temperature=7), "temperature"),
    (request_of(top_p=-1), "top_p"),
    (request_of(prompt=[10**6]), "prompt"),
    (request_of(prompt=[]), ""),
    (pb.GenerateRequest(request_id="r"), "input"),
    (request_of(structural_tag="{}"), "structural_tag"),
    (request_of(json_schema="{"), "json_schema"),
    (request_of(regex="("), "regex"),
    (request_of(logprobs=-1), "logprobs"),
    (request_of(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
    (request_of(logit_bias={-5: 1.0}), "logit_bias"),
]


async def test_errors_name_the_field(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        for request, param in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await worker.whole(request)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, request
            assert param in (caught.value.details() or ""), request


async def test_a_truncated_prompt(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        complete = await worker.whole(request_of(truncate_prompt_tokens=3, temperature=0, max_tokens=5))
        same = await worker.whole(request_of(prompt=PROMPT[-3:], temperature=0, max_tokens=5))
    assert complete.prompt_tokens == 3
    assert complete.output_ids == same.output_ids


async def test_an_abort_ends_the_callers_request_alone(engine: Engine, folder: Path) -> None:
    request = request_of("same", stream=True, max_tokens=LONG, ignore_eos=True)
    async with working(engine, folder) as worker, connected(worker.listener) as channel:
        other = Worker(worker.listener, channel)
        mine, theirs = worker.generate(request), other.generate(request)
        await mine.read()
        await theirs.read()
        await worker.abort("another", "same")
        messages = [each async for each in _rest(mine)]
        assert messages[-1].complete.finish_reason == "abort"
        assert len(messages[-1].complete.output_ids) < LONG
        assert await mine.code() == grpc.StatusCode.OK
        theirs_last = [each async for each in _rest(theirs)][-1]
        assert (theirs_last.complete.finish_reason, theirs_last.complete.completion_tokens) == ("length", LONG)


async def test_a_cancelled_call_and_a_passed_deadline_free_the_engine(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        request = request_of(stream=True, n=8, max_tokens=LONG, ignore_eos=True)
        call = worker.generate(request)
        await call.read()
        call.cancel()
        await wait_for(lambda: not engine.stats()["tiny"].running)
        call = worker.generate(request, timeout=0.05)
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await wait_for(lambda: not engine.stats()["tiny"].running)
        assert await worker.active() == 0


async def test_an_embedding(engine: Engine, folder: Path) -> None:
    [expected] = [
        delta.embedding
        async for delta in engine.stream("tiny", PROMPT, SamplingParams(max_tokens=0, pooling=Pooling.MEAN))
        if delta.embedding
    ]
    request = pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=PROMPT))
    async with working(engine, folder, models={"tiny": folder}, embeddings={"tiny": "mean"}) as worker:
        answer = await worker.ask("Embed", request, pb.EmbedResponse)
    assert list(answer.embedding) == pytest.approx(np.frombuffer(expected, "<f4").tolist())
    assert (answer.prompt_tokens, answer.embedding_dim) == (len(PROMPT), len(answer.embedding))
    async with working(engine, folder) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.ask("Embed", request, pb.EmbedResponse)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_model_server_and_health(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        await worker.whole(request_of(max_tokens=1))
        model = await worker.ask("GetModelInfo", pb.GetModelInfoRequest(), pb.GetModelInfoResponse)
        server = await worker.ask("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)
        health = await worker.ask("HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse)
        standard = await health_pb2_grpc.HealthStub(worker.channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE)
        )
    served = engine.models["tiny"]
    assert (model.model_path, model.served_model_name, model.is_generation) == (str(folder), "tiny", True)
    assert (model.max_context_length, model.vocab_size) == (served.max_model_len, served.vocab_size)
    assert (server.server_type, server.active_requests, server.is_paused) == ("vllm-grpc", 0, False)
    assert server.last_receive_timestamp > 0
    assert server.uptime_seconds > 0
    assert health.healthy
    assert standard.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_drain_lets_requests_end_and_takes_no_more(engine: Engine, folder: Path) -> None:
    async with working(engine, folder) as worker:
        call = worker.generate(request_of(stream=True, max_tokens=LONG, ignore_eos=True))
        await call.read()
        draining = asyncio.ensure_future(worker.listener.drain(30))
        await asyncio.sleep(0)
        refused = worker.generate(request_of(max_tokens=1))
        assert await refused.code() == grpc.StatusCode.UNAVAILABLE
        health = await worker.ask("HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse)
        assert not health.healthy
        assert [each async for each in _rest(call)][-1].complete.completion_tokens == LONG
        await asyncio.wait_for(draining, 30)


async def test_what_can_not_be_served(engine: Engine, folder: Path) -> None:
    with pytest.raises(OperatorError, match="set worker_tls"):
        VllmListener(Settings(data_dir=folder / "data"), engine, ListenAddress("0.0.0.0", 0))
    async with working(engine, folder) as worker:
        with pytest.raises(OperatorError, match="cannot listen"):
            VllmListener(Settings(data_dir=folder / "data"), engine, worker.listener.address)


async def _rest(call: Any) -> AsyncIterator[pb.GenerateResponse]:
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message
