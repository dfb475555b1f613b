"""The bound on concurrent requests: who waits, in which order, and who is refused."""

import asyncio
import http.client
import json
import threading
from contextlib import ExitStack, closing

from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from gateway.upstreams.load import UpstreamLoad
from tests.support.error_envelope import error_of
from tests.support.fake_upstream import chat_reply
from tests.support.gateway import AUTHORISED, CHAT, HEADERS, serving, until
from tests.support.upstream_app import BIG


def run(scenario) -> None:
    asyncio.run(scenario())


def test_higher_classes_come_first_and_tenants_in_turn():
    order = []

    async def scenario() -> None:
        load, all_wait = UpstreamLoad(1, 2, lambda: 0.0), asyncio.Event()

        async def ask(rank: int, tenant: str) -> None:
            async with load.slot(rank, tenant):
                order.append((rank, tenant))
                await all_wait.wait()

        asked = [(1, "a"), (1, "b"), (1, "b"), (1, "c"), (0, "d")]
        tasks = []
        for each in asked:
            tasks.append(asyncio.create_task(ask(*each)))
            await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks)
        load.check()
        assert (load.in_flight, load.waiting) == (0, 0)

    run(scenario)
    assert order == [(1, "a"), (0, "d"), (1, "b"), (1, "c"), (1, "b")]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.booleans()), max_size=12), st.integers(1, 3))
def test_no_slot_is_lost(asked, slots):
    """However requests come, wait and are cancelled."""

    async def scenario() -> None:
        load = UpstreamLoad(slots, 3, lambda: 0.0)

        async def ask(rank: int, tenant: str) -> None:
            async with load.slot(rank, tenant):
                assert load.in_flight <= slots
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(ask(rank, tenant)) for rank, tenant, _ in asked]
        await asyncio.sleep(0)
        for task, (_, _, is_cancelled) in zip(tasks, asked, strict=True):
            if is_cancelled:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        load.check()
        assert (load.in_flight, load.waiting) == (0, 0)

    run(scenario)


def test_predictions():
    async def scenario() -> None:
        load = UpstreamLoad(2, 2, lambda: 0.0)
        load.request_s, load.first_token_s = 4.0, 0.5
        assert load.predicted_wait(1).drain_ns == 0
        held = [load.reserve(0), load.reserve(1)]
        assert load.predicted_wait(1).drain_ns == 2 * 10**9
        assert load.predicted_wait(1).first_token_ns == 25 * 10**8
        assert load.predicted_wait(0).drain_ns == 0, "a lower class is not waited for"
        assert load.queue_depth == 0
        held.append(load.reserve(1))
        assert load.queue_depth == 1
        for reservation in held:
            reservation.release()
            reservation.release()
        load.check()
        assert load.reservations == 0

    run(scenario)


def test_more_than_the_bound_wait_and_are_answered(big, upstream):
    big.stated["max_concurrent"] = 2
    go = threading.Event()
    upstream.reply = chat_reply("x")
    upstream.reply = type(upstream.reply)([go, *upstream.reply.parts])
    with serving(big.build()) as server, ExitStack() as stack:
        connections = []
        for _ in range(5):
            connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)))
            connection.request("POST", CHAT, json.dumps(BIG), HEADERS)
            connections.append(connection)
        until(lambda: big.model.load.in_flight == 2 and big.model.load.waiting == 3)
        until(lambda: len(upstream.received) == 2)
        go.set()
        assert [connection.getresponse().status for connection in connections] == [200] * 5
        big.model.load.check()
        assert big.model.load.reservations == 0


def test_those_that_would_wait_too_long_are_refused(big, upstream):
    big.stated["max_concurrent"] = 1
    with TestClient(big.build(), headers=AUTHORISED) as client:
        big.model.load.request_s = 1000.0
        big.model.load.in_flight += 1
        response = client.post(CHAT, json=BIG)
        assert error_of(response, 429)["code"] == "overloaded"
        assert int(response.headers["retry-after"]) > 1
        big.model.load.in_flight -= 1
        assert client.post(CHAT, json=BIG).status_code == 200
        text = client.get("/metrics").text
    assert 'turnpike_sequences_running{gen_ai_request_model="big"} 0.0' in text
