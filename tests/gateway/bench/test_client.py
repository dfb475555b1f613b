"""Answers of servers of other makers, as they come over the wire."""

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.tools.bench.client import Client, ServerRefuses, Target, opened
from gateway.tools.bench.clock import Clock
from gateway.tools.bench.lengths import LogNormal
from gateway.tools.bench.outcome import FINISHED, UNFINISHED, Outcome
from gateway.tools.bench.prompts import Prompt, PromptsUnreadable, from_file
from gateway.tools.bench.recorder import Recorder
from tests.gateway.bench.fake_server import Script, delta, finish, serving, sse, usage
from tests.support.servers import free_port

PROMPT = Prompt("Hello", None, 16)
ROLE, ONE, TWO = delta(role="assistant", content=""), delta(content="one"), delta(content=" two")


def target(url: str, **more: object) -> Target:
    fields = {"model": "m", "endpoint": "chat", "key": None, "ignore_eos": False, "timeout_s": 10.0}
    return Target(url, **fields | more)  # type: ignore[arg-type]


def asked(url: str, **more: object) -> Outcome:
    async def ask() -> Outcome:
        clock, record = Clock(), Recorder()
        async with opened(target(url, **more), clock) as client:
            await client.ask(PROMPT, clock.now_s(), record)
        assert record.under_way == 0
        return record.outcomes[0]

    return asyncio.run(ask())


def of(*pieces: bytes, **more: object) -> Outcome:
    with serving(Script(pieces, **more)) as url:  # type: ignore[arg-type]
        return asked(url)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([sse(ROLE, ONE, TWO, finish(), usage(5, 9), "[DONE]")], id="all at once"),
        pytest.param([sse(each) for each in (ROLE, ONE, TWO, finish(), usage(5, 9), "[DONE]")], id="one by one"),
        pytest.param([sse(ROLE, ONE, TWO, finish(), usage(5, 9), "[DONE]", end="\r\n\r\n")], id="CRLF"),
        pytest.param(
            [b": ping\n\n", sse(ROLE, ONE), b": ping\n\n", sse(TWO, finish(), usage(5, 9), "[DONE]")], id="comments"
        ),
        pytest.param(
            [bytes([byte]) for byte in sse(ONE, TWO | {"usage": None}, usage(5, 9) | finish(), "[DONE]")],
            id="byte by byte",
        ),
        pytest.param([sse(ROLE, ONE, TWO, finish(), usage(5, 9))], id="no DONE"),
    ],
)
def test_whole_answers(pieces: list[bytes]) -> None:
    outcome = of(*pieces)
    assert outcome.ending == FINISHED
    assert (outcome.prompt_tokens, outcome.usage_tokens, len(outcome.pieces_s)) == (5, 9, 2)
    assert outcome.due_s <= outcome.sent_s <= outcome.pieces_s[0] <= outcome.pieces_s[1] <= outcome.ended_s


def test_without_usage_chunks_are_counted() -> None:
    outcome = of(sse(ROLE, ONE, TWO, finish(), "[DONE]"))
    assert (outcome.usage_tokens, outcome.output_tokens) == (None, 2)


@pytest.mark.parametrize(
    ("pieces", "more", "ending"),
    [
        ([sse(ROLE, ONE)], {}, "stream cut off"),
        ([sse(ROLE, ONE)], {"cut": True}, "connection lost"),
        ([sse(ROLE, ONE, {"error": {"code": "engine_error"}}, "[DONE]")], {}, "error in the stream: engine_error"),
        ([sse(ROLE, finish(), "[DONE]")], {}, "empty answer"),
        ([sse(ONE, "{broken")], {}, "malformed event"),
        ([b'{"error": {"code": "rate_limit_exceeded"}}'], {"status": 429}, "http 429 rate_limit_exceeded"),
        ([b'{"detail": "Not Found"}'], {"status": 404}, "http 404 Not Found"),
        ([b"<html>"], {"status": 502}, "http 502"),
        ([b"{}"], {"content_type": "application/json"}, "no stream but application/json"),
    ],
)
def test_what_is_no_answer(pieces: list[bytes], more: dict[str, object], ending: str) -> None:
    outcome = of(*pieces, **more)
    assert outcome.ending == ending
    assert outcome.refused is ("429" in ending)


def test_nobody_there() -> None:
    assert asked(f"http://127.0.0.1:{free_port()}/v1").ending == "cannot connect"


def test_an_answer_that_takes_too_long() -> None:
    with serving(Script(delay_s=0.5)) as url:
        assert asked(url, timeout_s=0.05).ending == "timeout"


def test_one_that_is_broken_off_is_noted() -> None:
    async def ask(url: str) -> Outcome:
        clock, record = Clock(), Recorder()
        async with opened(target(url), clock) as client:
            asking = asyncio.create_task(client.ask(PROMPT, clock.now_s(), record))
            await asyncio.sleep(0)
            assert record.under_way == 1
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        return record.outcomes[0]

    with serving(Script()) as url:
        assert asyncio.run(ask(url)).ending == UNFINISHED


def test_what_is_sent() -> None:
    script = Script([sse(ONE, finish(), "[DONE]")])
    with serving(script) as url:
        asked(url, key="k", ignore_eos=True)
        asked(url, endpoint="completions")
    chat, completion = script.bodies
    assert chat == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert (completion["prompt"], "messages" in completion, "ignore_eos" in completion) == ("Hello", False, False)
    assert script.keys == ["Bearer k", None]


def three(script: Script, *, keep_connections: bool = True) -> list[Outcome]:
    async def ask(url: str) -> list[Outcome]:
        clock, record = Clock(), Recorder()
        async with opened(target(url), clock, keep_connections=keep_connections) as client:
            for _ in range(3):
                await client.ask(PROMPT, clock.now_s(), record)
        return record.outcomes

    with serving(script) as url:
        return asyncio.run(ask(url))


def test_a_connection_serves_one_request_after_another() -> None:
    """Also where the last byte comes some time after what the user waits for."""
    script = Script([sse(ONE, finish(), "[DONE]")], end_delay_s=0.1)
    outcomes = three(script)
    assert [each.ending for each in outcomes] == [FINISHED] * 3
    assert [*script.peers.values()] == [3]
    assert min(after.sent_s - before.ended_s for before, after in pairwise(outcomes)) > 0.05


def test_what_is_lost_with_a_kept_connection_is_sent_again() -> None:
    """The first request on a connection is answered, the second one is not."""
    script = Script([sse(ONE, finish(), "[DONE]")], answers_a_connection=1)
    assert [each.ending for each in three(script)] == [FINISHED] * 3
    assert [*script.peers.values()] == [2, 2, 1]


def test_what_is_lost_with_a_new_connection_is_an_error() -> None:
    script = Script(answers_a_connection=0)
    assert all(each.ending.startswith("connection: ") for each in three(script))
    assert [*script.peers.values()] == [1, 1, 1]


def test_a_connection_for_each_request() -> None:
    script = Script([sse(ONE, finish(), "[DONE]")])
    assert [each.ending for each in three(script, keep_connections=False)] == [FINISHED] * 3
    assert [*script.peers.values()] == [1, 1, 1]


def test_what_becomes_of_the_connection_after_the_end_is_nobodys_concern() -> None:
    assert of(sse(ONE, finish(), "[DONE]"), cut=True).ending == FINISHED


def prepared(url: str) -> Client:
    async def prepare() -> Client:
        async with opened(target(url, key="sk-secret"), Clock()) as client:
            await client.prepare(PROMPT)
            return client

    return asyncio.run(prepare())


def test_a_server_that_does_not_know_stream_options_is_asked_without() -> None:
    script = Script([sse(ONE, finish(), "[DONE]")], refuse=lambda body: "stream_options" in body)
    with serving(script) as url:
        assert not prepared(url).target.ask_usage
    script = Script([sse(ONE, finish(), usage(1, 1), "[DONE]")])
    with serving(script) as url:
        assert prepared(url).target.ask_usage
    assert len(script.bodies) == 1


def test_no_load_is_put_on_a_server_that_refuses() -> None:
    with serving(Script([b'{"error": {"code": "invalid_api_key"}}'], status=401)) as url:
        with pytest.raises(ServerRefuses, match="http 401 invalid_api_key") as refused:
            prepared(url)
        assert "sk-secret" not in str(refused.value)
    with serving(Script(refuse=lambda _: True)) as url, pytest.raises(ServerRefuses, match="http 400 unknown field"):
        prepared(url)


class TestPromptsOfAFile:
    lengths = LogNormal(8, 0, 1, 32)

    def drawn(self, path: Path, count: int, seed: int = 0) -> list[Prompt]:
        prompts = from_file(path, self.lengths, random.Random(seed))
        return [next(prompts) for _ in range(count)]

    def test_every_form_and_all_of_them_in_turn(self, tmp_path: Path) -> None:
        file = tmp_path / "prompts"
        messages = '{"messages": [{"role": "user", "content": "c"}], "max_tokens": 3}'
        file.write_text('plain text\n\n{"prompt": "b"}\n' + messages + "\n")
        first, again = self.drawn(file, 6)[:3], self.drawn(file, 6)[3:]
        assert first == again
        by_text = {prompt.text: prompt for prompt in first}
        assert by_text.keys() == {"plain text", "b", ""}
        assert by_text["b"].max_tokens == 8
        assert by_text[""] == Prompt("", ({"role": "user", "content": "c"},), 3)
        assert self.drawn(file, 3) == self.drawn(file, 3)

    @pytest.mark.parametrize(
        "text", ["", "\n", "{", "{}", '{"prompt": 7}', '{"messages": []}', '{"prompt": "a", "max_tokens": 0}']
    )
    def test_what_cannot_be_used(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "prompts"
        file.write_text(text)
        with pytest.raises(PromptsUnreadable, match="prompts"):
            self.drawn(file, 1)
        with pytest.raises(PromptsUnreadable, match="FileNotFoundError"):
            self.drawn(tmp_path / "none", 1)
