"""How gRPC requests end before their answers do: deadline, cancel, a client that reads nothing, drain."""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from unittest.mock import ANY

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.grpc.protos import inference_pb2 as pb
from gateway.metering.event import Ending
from tests.support.fake_engine import FakeEngine
from tests.support.grpc_gateway import SERVICE, grpc_gateway, infer_request, text_of
from tests.support.usage_events import events_of

LONG = "abcdefgh" * 40
PACE_S = 0.02
WITHIN_S = 10.0
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
"""Options of a client that flow control holds back soon."""


async def until(condition) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def texts_of(call) -> tuple[str, list[pb.ModelStreamInferResponse]]:
    """All text that arrives, and all messages."""
    messages = []
    with suppress(grpc.aio.AioRpcError):
        while (message := await call.read()) is not grpc.aio.EOF:
            messages.append(message)
    return "".join(text_of(each.infer_response) for each in messages if each.infer_response.outputs), messages


async def test_a_deadline_ends_a_stream_and_bills_what_was_sent(settings, services, journal, engine) -> None:
    engine.reply, engine.pace_s = LONG, PACE_S
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.stream(timeout=2.0)
        await call.write(infer_request(stream=True, max_tokens=300))
        text, _ = await texts_of(call)
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not engine.live and events_of(journal))
    (event,) = events_of(journal)
    assert 0 < len(text) <= event.completion_tokens < len(LONG)
    assert (event.finish_reason, event.http_status) == (Ending.CANCELLED, 200)
    assert event.cost_nanodollars > 0


async def test_a_deadline_of_a_whole_answer_bills_nothing(settings, services, journal, engine, limiter) -> None:
    """As an HTTP client that disconnects before it: the client has nothing of the answer."""
    engine.reply, engine.pace_s = LONG, PACE_S
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.infer_call(infer_request(max_tokens=300), timeout=0.3)
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not engine.live and events_of(journal))
    (event,) = events_of(journal)
    assert (event.completion_tokens, event.finish_reason, event.http_status) == (0, Ending.CANCELLED, 499)
    assert event.undelivered_tokens > 0
    assert engine.generated < len(LONG)


async def test_a_cancelled_stream_stops_the_engine_and_bills_the_part(settings, services, journal, engine) -> None:
    engine.reply, engine.pace_s = LONG, PACE_S
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.stream()
        for id in ("a", "b"):
            await call.write(infer_request(id=id, stream=True, max_tokens=300))
        received = {"a": 0, "b": 0}
        while min(received.values()) < 3:
            message = await call.read()
            received[message.infer_response.id] += len(text_of(message.infer_response))
        call.cancel()
        await until(lambda: not engine.live and len(events_of(journal)) == 2)
    for event in events_of(journal):
        assert 3 <= event.completion_tokens < len(LONG)
        assert event.finish_reason == Ending.CANCELLED
        assert event.cost_nanodollars > 0


async def test_a_lost_connection_is_a_cancel(settings, services, journal, engine) -> None:
    engine.reply, engine.pace_s = LONG, PACE_S
    async with grpc_gateway(settings, services) as gateway:
        call = gateway.infer_call(infer_request(max_tokens=300))
        waiting = asyncio.ensure_future(call)
        await until(lambda: engine.generated > 3)
        await gateway.channel.close()
        await asyncio.wait([waiting])
        await until(lambda: not engine.live and events_of(journal))
    assert events_of(journal)[0].finish_reason == Ending.CANCELLED


async def test_a_client_that_reads_nothing_is_cut_off(settings, services, journal) -> None:
    """Flow control holds back its messages."""
    engine = FakeEngine({"tiny": 2**20})
    engine.reply = "x" * 30_000
    async with grpc_gateway(
        settings, replace(services, engine=engine), stall_seconds=0.5, client_options=SMALL_WINDOW
    ) as gateway:
        call = gateway.stream()
        await call.write(infer_request(stream=True, max_tokens=30_000))
        await until(lambda: events_of(journal))
        call.cancel()
    (event,) = events_of(journal)
    assert event.finish_reason == Ending.CANCELLED
    assert event.completion_tokens < len(engine.reply)
    assert not engine.live


async def test_a_drain_lets_running_requests_end(settings, services, journal, engine) -> None:
    engine.reply, engine.pace_s = LONG[:60], 2 * PACE_S
    async with grpc_gateway(settings, services) as gateway:
        health = health_pb2_grpc.HealthStub(gateway.channel)
        idle, busy = gateway.stream(), gateway.stream()
        await idle.write(infer_request())
        await busy.write(infer_request(stream=True, max_tokens=60))
        await busy.read()
        whole = asyncio.ensure_future(gateway.infer(infer_request(max_tokens=60)))
        await until(lambda: len(engine.live) == 3)
        gateway.server.begin_drain()
        for name in ("", SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            while (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.02)
            assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        refused = gateway.infer_call(infer_request())
        assert await refused.code() == grpc.StatusCode.UNAVAILABLE
        assert "retry-after" in dict(await refused.trailing_metadata())
        assert text_of(await whole) == engine.reply
        text, messages = await texts_of(busy)
        assert await texts_of(idle) == (engine.reply[:16], [ANY])
        # They could have sent more: the status says why no answer would come.
        assert (await idle.code(), await busy.code()) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
        await asyncio.wait_for(gateway.serving, WITHIN_S)
    assert len(text) == 59, "one was read before"
    assert messages[-1].infer_response.parameters["triton_final_response"].bool_param
    assert {event.finish_reason for event in events_of(journal)} == {Ending.LENGTH, Ending.STOP}


async def test_the_deadline_of_a_drain_cuts_requests_off(settings, services, journal, engine) -> None:
    engine.reply, engine.pace_s = LONG, PACE_S
    async with grpc_gateway(settings, services, deadline_s=0.5) as gateway:
        stream = gateway.stream()
        await stream.write(infer_request(stream=True, max_tokens=300))
        await stream.read()
        whole = gateway.infer_call(infer_request(max_tokens=300))
        waiting = asyncio.ensure_future(whole.code())
        await until(lambda: len(engine.live) == 2)
        gateway.server.begin_drain()
        _, messages = await texts_of(stream)
        assert await waiting == grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(gateway.serving, WITHIN_S)
    assert "shutting down" in messages[-1].error_message
    assert {event.finish_reason for event in events_of(journal)} == {Ending.INTERRUPTED}


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(settings, services, journal) -> None:
    engine = FakeEngine({"tiny": 2**20})
    engine.reply = "x" * 30_000
    given = replace(services, engine=engine)
    async with grpc_gateway(settings, given, deadline_s=0.5, client_options=SMALL_WINDOW) as gateway:
        call = gateway.stream()
        await call.write(infer_request(stream=True, max_tokens=30_000))
        await until(lambda: engine.generated > 100)
        gateway.server.begin_drain()
        await asyncio.wait_for(gateway.serving, WITHIN_S)
        call.cancel()
    (event,) = events_of(journal)
    assert event.finish_reason in (Ending.INTERRUPTED, Ending.CANCELLED)
    assert event.completion_tokens < len(engine.reply)
    assert not engine.live
