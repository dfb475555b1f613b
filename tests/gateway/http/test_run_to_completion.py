"""A shutdown's deadline that passes between billing an answer and sending it."""

import asyncio

import orjson
import pytest

from gateway.http.run_to_completion import run_to_completion
from tests.support.gateway import BODY, CHAT


async def test_it_ends_though_its_caller_is_cancelled() -> None:
    begun, go, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await go.wait()
        ended.append(True)

    task = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    await task
    assert ended == [True]


async def test_what_goes_wrong_in_it_is_told() -> None:
    async def work() -> None:
        raise RuntimeError("the disk")

    with pytest.raises(RuntimeError, match="the disk"):
        await run_to_completion(work())


async def test_a_whole_answer_that_is_billed_is_sent(app, engine, journal, monkeypatch) -> None:
    engine.start()
    sent, billing, go = [], asyncio.Event(), asyncio.Event()
    finish = journal.finish

    async def slow_finish(*arguments) -> None:
        billing.set()
        await go.wait()
        await finish(*arguments)

    monkeypatch.setattr(journal, "finish", slow_finish)
    body = [{"type": "http.request", "body": orjson.dumps(BODY)}]

    async def receive() -> dict:
        if not body:
            await asyncio.sleep(60)
        return body.pop()

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer tp-standard"), (b"content-type", b"application/json")]
    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": headers, "root_path": "", "query_string": b""}
    task = asyncio.create_task(app(scope, receive, send))
    await billing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    await task
    assert sent[0]["status"] == 200
    assert orjson.loads(sent[-1]["body"])["choices"][0]["message"]["content"] == engine.reply
