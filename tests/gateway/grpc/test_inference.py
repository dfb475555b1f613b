"""The Open Inference Protocol: answers, options, errors, and what is billed."""

import dataclasses
import re
from pathlib import Path
from urllib.parse import unquote

import grpc
import pytest
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.grpc.inference_stream import MAX_REQUESTS
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.statuses import MAX_PARAM_CHARS, MAX_TEXT_CHARS
from gateway.grpc.tensors import MAX_DIMENSIONS, inputs_of
from gateway.http.errors import APIError
from gateway.metering.event import Ending
from gateway.tenancy.grants import KeyScope
from tests.support.gateway import KEY, PREMIUM_KEY, limit
from tests.support.grpc_gateway import BEARER, SERVICE, grpc_gateway, infer_request, sampling, text_of
from tests.support.usage_events import events_of

PREMIUM = (("authorization", f"Bearer {PREMIUM_KEY}"),)
DIFFERING = {
    *("event_id", "request_id", "http_request_id", "endpoint", "sequence", "occurred_at"),
    *("ttft_ms", "total_latency_ms", "streamed"),
}
"""Fields of a usage event in which gRPC and HTTP differ: identity and time."""


def bill_of(event) -> dict:
    names = {field.name for field in dataclasses.fields(event)} - DIFFERING
    return {name: getattr(event, name) for name in names}


async def read_all(call, requests) -> list[pb.ModelStreamInferResponse]:
    for request in requests:
        await call.write(request)
    await call.done_writing()
    return [message async for message in call]


def final_of(message) -> bool:
    return message.infer_response.parameters["triton_final_response"].bool_param


@pytest.mark.parametrize("options", [{"max_tokens": 5}, {"max_tokens": 9, "seed": 4, "stop": "w"}])
async def test_a_whole_answer_and_its_bill_are_those_of_http(settings, services, journal, options) -> None:
    async with grpc_gateway(settings, services) as gateway:
        answer = await gateway.infer(infer_request(id="mine", **options))
        body = {"model": "tiny", "prompt": "hi", **options}
        other = (await gateway.http.post("/v1/completions", json=body)).json()
    assert text_of(answer) == other["choices"][0]["text"]
    assert (answer.model_name, answer.model_version, answer.id) == ("tiny", "1", "mine")
    parameters = {name: each.WhichOneof("parameter_choice") for name, each in answer.parameters.items()}
    assert parameters["triton_final_response"] == "bool_param"
    assert answer.parameters["finish_reason"].string_param == other["choices"][0]["finish_reason"]
    assert answer.parameters["prompt_tokens"].int64_param == other["usage"]["prompt_tokens"]
    assert answer.parameters["completion_tokens"].int64_param == other["usage"]["completion_tokens"]
    ours, theirs = events_of(journal)
    assert bill_of(ours) == bill_of(theirs)
    assert ours.cost_nanodollars > 0
    assert ours.endpoint == f"/{SERVICE}/ModelInfer"


async def test_the_headers_of_http_are_initial_metadata(settings, services) -> None:
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.infer_call(infer_request(), (*BEARER, ("x-request-id", "abc")))
        await call
        initial = dict(await call.initial_metadata())
    assert initial["x-request-id"] == "abc"
    assert initial["x-turnpike-served-model"] == "tiny"


async def test_a_stream_has_the_text_in_parts_and_a_last_message(settings, services, journal, engine) -> None:
    async with grpc_gateway(settings, services) as gateway:
        messages = await read_all(gateway.stream(), [infer_request(id="a", stream=True)])
    assert [final_of(each) for each in messages] == [False] * (len(messages) - 1) + [True]
    assert len(messages) > 2
    assert "".join(text_of(each.infer_response) for each in messages) == engine.reply
    assert {each.infer_response.id for each in messages} == {"a"}
    last = messages[-1].infer_response.parameters
    assert last["finish_reason"].string_param == "stop"
    assert last["completion_tokens"].int64_param == len(engine.reply)
    (event,) = events_of(journal)
    assert (event.completion_tokens, event.streamed) == (len(engine.reply), True)


async def test_without_stream_the_one_message_is_the_last(settings, services, engine) -> None:
    async with grpc_gateway(settings, services) as gateway:
        [message] = await read_all(gateway.stream(), [infer_request()])
    assert final_of(message)
    assert text_of(message.infer_response) == engine.reply


async def test_a_bad_request_on_a_stream_leaves_it_to_the_others(settings, services, engine) -> None:
    requests = [
        infer_request(id="bad", stream=True, temperature=7.0),
        infer_request(id="unknown", model="nothing"),
        infer_request(id="good", stream=True),
    ]
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.stream()
        messages = await read_all(call, requests)
        assert await call.code() == grpc.StatusCode.OK
    by_id = {each.infer_response.id: each for each in messages}
    assert "temperature" in by_id["bad"].error_message
    assert by_id["bad"].infer_response.parameters["grpc_status"].string_param == "INVALID_ARGUMENT"
    assert by_id["unknown"].infer_response.parameters["grpc_status"].string_param == "NOT_FOUND"
    assert final_of(by_id["bad"])
    assert not by_id["good"].error_message
    text = "".join(text_of(each.infer_response) for each in messages if each.infer_response.id == "good")
    assert text == engine.reply


async def test_an_engine_that_fails_within_a_stream_ends_the_request_alone(settings, services, journal, engine) -> None:
    engine.fail_at = 3
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.stream()
        await call.write(infer_request(id="a", stream=True))
        messages = [await call.read()]
        while not messages[-1].error_message:
            messages.append(await call.read())
        engine.fail_at = None
        await call.write(infer_request(id="b"))
        answer = await call.read()
        await call.done_writing()
    assert "failed to process" in messages[-1].error_message
    assert text_of(answer.infer_response) == engine.reply
    failed, whole = events_of(journal)
    assert (failed.finish_reason, whole.finish_reason) == (Ending.ERROR, Ending.STOP)
    sent = "".join(text_of(each.infer_response) for each in messages[:-1])
    assert failed.completion_tokens == len(sent)


async def test_a_chat_is_rendered_by_the_template(settings, services, journal) -> None:
    async with grpc_gateway(settings, services) as gateway:
        answer = await gateway.infer(infer_request(chat=True, system="be brief"))
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        other = await gateway.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert text_of(answer) == other.json()["choices"][0]["message"]["content"]
    ours, theirs = events_of(journal)
    assert bill_of(ours) == bill_of(theirs)


async def test_a_session_continues_in_metadata(settings, services, engine) -> None:
    metadata = (*BEARER, ("x-turnpike-session", "one"))
    async with grpc_gateway(settings, services) as gateway:
        await gateway.infer(infer_request("first", chat=True), metadata)
        messages = await read_all(gateway.stream(metadata), [infer_request("second", chat=True, stream=True)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.infer(infer_request("no chat"), metadata)
    assert final_of(messages[-1])
    prompt = bytes(token for token in engine.calls[1].prompt if token < 256)
    assert prompt.index(b"first") < prompt.index(engine.reply.encode()) < prompt.index(b"second")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_takes_any_number_of_requests(settings, services, engine) -> None:
    """Good and bad ones, more than run at a time."""
    requests = [infer_request(id=str(i), temperature=7.0 if i % 3 == 0 else 1.0) for i in range(3 * MAX_REQUESTS)]
    async with grpc_gateway(settings, services) as gateway:
        messages = await read_all(gateway.stream(), requests)
    assert {each.infer_response.id for each in messages} == {str(i) for i in range(3 * MAX_REQUESTS)}
    assert {int(each.infer_response.id) % 3 for each in messages if each.error_message} == {0}


async def test_options_are_tensors_parameters_or_json(settings, services, engine) -> None:
    request = infer_request(seed=3, sampling_parameters=sampling({"logit_bias": {"5": 1.5}, "top_k": 9}))
    temperature = request.inputs.add(name="temperature", datatype="FP32", shape=[1, 1])
    temperature.contents.fp32_contents.append(0.7)
    stop = request.inputs.add(name="stop", datatype="BYTES", shape=[2])
    stop.contents.bytes_contents.extend([b"x", b"yz"])
    async with grpc_gateway(settings, services) as gateway:
        await gateway.infer(request)
    params = engine.calls[-1].params
    assert (params.seed, params.temperature, params.top_k, params.stop) == (3, 0.7, 9, ("x", "yz"))
    assert dict(params.logit_bias) == {5: 1.5}


async def test_raw_inputs_get_a_raw_output(settings, services, engine) -> None:
    request = pb.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
    request.raw_input_contents.extend([b"\x02\0\0\0hi", b"\x03\0\0\0"])
    async with grpc_gateway(settings, services) as gateway:
        answer = await gateway.infer(request)
    assert list(answer.raw_output_contents) == [b"\x03\0\0\0" + engine.reply[:3].encode()]


REFUSED = [
    (infer_request(model="nothing"), grpc.StatusCode.NOT_FOUND, "model"),
    (infer_request(temperature=7.0), grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    (infer_request(max_tokens="many"), grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
    (infer_request(unheard=1), grpc.StatusCode.INVALID_ARGUMENT, "unheard"),
    (infer_request(n=2), grpc.StatusCode.INVALID_ARGUMENT, "n"),
    (infer_request(logprobs=1), grpc.StatusCode.INVALID_ARGUMENT, "logprobs"),
    (infer_request(prompt="hi"), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    (infer_request(stream=True), grpc.StatusCode.INVALID_ARGUMENT, "stream"),
    (infer_request(chat="yes"), grpc.StatusCode.INVALID_ARGUMENT, "chat"),
    (infer_request("x" * 600), grpc.StatusCode.INVALID_ARGUMENT, "text_input"),
    (infer_request(sampling_parameters="[]"), grpc.StatusCode.INVALID_ARGUMENT, "sampling_parameters"),
    (pb.ModelInferRequest(model_name="tiny"), grpc.StatusCode.INVALID_ARGUMENT, "text_input"),
    (pb.ModelInferRequest(model_name="tiny", model_version="7"), grpc.StatusCode.NOT_FOUND, "model_version"),
]


async def test_errors_have_a_code_and_name_the_field(settings, services, refusals, refusal_table) -> None:
    async with grpc_gateway(settings, services) as gateway:
        for request, code, param in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await gateway.infer(request)
            assert caught.value.code() == code, request
            assert param in (caught.value.details() or ""), request
            assert dict(caught.value.trailing_metadata())["error-param"] == param
        await refusals.flush()
    assert refusal_table.requests == len(REFUSED)
    assert {row.endpoint for row in refusal_table.rows} == {f"/{SERVICE}/ModelInfer"}


async def test_keys_and_their_scopes(settings, services, authenticator) -> None:
    principal = authenticator.principals[PREMIUM_KEY]
    authenticator.principals[PREMIUM_KEY] = dataclasses.replace(principal, scopes=frozenset({KeyScope.CHAT}))
    async with grpc_gateway(settings, services) as gateway:
        for metadata, chat, code in [
            ((), False, grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", "Bearer tp-wrong"),), False, grpc.StatusCode.UNAUTHENTICATED),
            (PREMIUM, False, grpc.StatusCode.PERMISSION_DENIED),
            (PREMIUM, True, None),
            ((("x-api-key", KEY),), False, None),
        ]:
            call = gateway.infer_call(infer_request(chat=chat), metadata)
            assert await call.code() == (code or grpc.StatusCode.OK)


async def test_a_limit_says_when_to_retry(settings, services, authenticator) -> None:
    limit(authenticator, requests_per_minute=1)
    async with grpc_gateway(settings, services) as gateway:
        await gateway.infer(infer_request())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.infer(infer_request())
        [message] = await read_all(gateway.stream(), [infer_request()])
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(caught.value.trailing_metadata())
    assert 0 < int(trailers["retry-after"]) <= 60
    assert 0 < int(trailers["retry-after-ms"]) <= 60_000
    assert trailers["x-ratelimit-remaining-requests"] == "0"
    assert trailers["error-code"] == "rate_limit_exceeded"
    assert message.infer_response.parameters["grpc_status"].string_param == "RESOURCE_EXHAUSTED"
    assert 0 < message.infer_response.parameters["retry_after_ms"].int64_param <= 60_000


async def test_a_message_over_the_bound_is_refused(settings, services) -> None:
    async with grpc_gateway(settings, services) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.infer(infer_request("x" * (settings.max_body_bytes + 1)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_models_and_the_server(settings, services) -> None:
    async with grpc_gateway(settings, services) as gateway:
        live = await gateway.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse, ())
        ready = await gateway.ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse, ())
        server = await gateway.ask("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse, ())
        assert (live.live, ready.ready, server.name) == (True, True, "turnpike")
        for name, version, is_ready in [
            ("tiny", "", True),
            ("tiny", "1", True),
            ("tiny", "2", False),
            ("no", "", False),
        ]:
            request = pb.ModelReadyRequest(name=name, version=version)
            assert (await gateway.ask("ModelReady", request, pb.ModelReadyResponse)).ready is is_ready
        model = await gateway.ask("ModelMetadata", pb.ModelMetadataRequest(name="tiny"), pb.ModelMetadataResponse)
        assert [(each.name, each.datatype) for each in model.outputs] == [("text_output", "BYTES")]
        assert ("text_input", "BYTES") in [(each.name, each.datatype) for each in model.inputs]
        for request, metadata, code in [
            (pb.ModelMetadataRequest(name="no"), BEARER, grpc.StatusCode.NOT_FOUND),
            (pb.ModelMetadataRequest(name="tiny"), (), grpc.StatusCode.UNAUTHENTICATED),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await gateway.ask("ModelMetadata", request, pb.ModelMetadataResponse, metadata)
            assert caught.value.code() == code
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.ask("ModelStatistics", pb.ModelReadyRequest(), pb.ModelReadyResponse)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_health_and_reflection(settings, services) -> None:
    async with grpc_gateway(settings, services) as gateway:
        health = health_pb2_grpc.HealthStub(gateway.channel)
        for name in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
        asked = reflection_pb2.ServerReflectionRequest
        call = reflection.ServerReflectionInfo(iter([asked(list_services=""), asked(file_containing_symbol=SERVICE)]))
        services_answer, file_answer = [each async for each in call]
    names = {each.name for each in services_answer.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert file_answer.file_descriptor_response.file_descriptor_proto


async def test_the_example_of_the_readme(settings, services, engine) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^grpcurl .*? -d '(.*?)'", readme, re.DOTALL | re.MULTILINE)
    request = json_format.Parse(example, pb.ModelInferRequest())
    request.model_name = "tiny"
    async with grpc_gateway(settings, services) as gateway:
        messages = await read_all(gateway.stream(), [request])
    assert "".join(text_of(each.infer_response) for each in messages) == engine.reply
    assert b"What is the capital of France?" in bytes(token for token in engine.calls[-1].prompt if token < 256)


def test_half_precision_comes_raw() -> None:
    request = pb.ModelInferRequest()
    request.inputs.add(name="temperature", datatype="FP16", shape=[1])
    request.raw_input_contents.append(b"\x9a9")  # 0.7
    assert inputs_of(request) == {"temperature": [0.7002]}


@pytest.mark.parametrize("name", ["größe", "a\nb", "\x00", " led ", "x" * 100_000, "\U0001f600" * 9_000])
async def test_a_refusal_repeats_no_more_of_a_name_than_metadata_can_have(settings, services, name) -> None:
    def typed(request: pb.ModelInferRequest, datatype: str) -> None:
        request.inputs.add(name=name, datatype=datatype, shape=[1]).contents.int_contents.append(1)

    def parameter(request: pb.ModelInferRequest) -> None:
        request.parameters[name].int64_param = 1

    changes = (lambda r: typed(r, "INT32"), lambda r: typed(r, name), parameter, lambda r: r.outputs.add(name=name))
    async with grpc_gateway(settings, services) as gateway:
        for change in changes:
            request = infer_request()
            change(request)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await gateway.infer(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert name[:8] in refused.value.details()
            assert len(refused.value.details()) <= MAX_TEXT_CHARS
            param = dict(refused.value.trailing_metadata())["error-param"]
            assert unquote(param) in (name[:MAX_PARAM_CHARS], "outputs")


def test_a_shape_of_many_dimensions_is_refused_before_it_is_computed() -> None:
    message = pb.ModelInferRequest()
    message.inputs.add(name="seed", datatype="INT64", shape=[2**62] * (MAX_DIMENSIONS + 1))
    with pytest.raises(APIError, match="more than 8 dimensions") as refused:
        inputs_of(message)
    assert (refused.value.status, refused.value.param) == (400, "seed")
