"""kill -9 of a gateway process in a batch, at several moments, and two processes with one batch: each line has one
answer and is billed once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from openai.types import Batch

from gateway.metering.event import UsageEvent
from tests.support.batch_app import ENDED, as_jsonl, chat_line, read_jsonl
from tests.support.batch_gateway_program import gateway_of, running
from tests.support.gateway import KEY

LINES = 120
PACE_S = 0.005
"""Of a token; an answer has 13."""


@contextmanager
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=10) as sdk:
        yield sdk


def create(sdk: openai.OpenAI) -> str:
    lines = [chat_line(f"line-{number}", max_tokens=20) for number in range(LINES)]
    file = sdk.files.create(file=("input.jsonl", as_jsonl(lines)), purpose="batch")
    created = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return created.id


def until_ended(sdk: openai.OpenAI, batch_id: str, seconds: float = 40) -> Batch:
    deadline = time.monotonic() + seconds
    while (batch := sdk.batches.retrieve(batch_id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def assert_books_are_equal(batch: Batch, outputs: bytes, events: list[UsageEvent]) -> None:
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", LINES, 0)
    answers = read_jsonl(outputs)
    assert set(answers) == {f"line-{number}" for number in range(LINES)}
    billed = [event for event in events if event.cost_nanodollars]
    assert len({event.event_id for event in billed}) == len(billed) == LINES
    requests = {answer["response"]["request_id"] for answer in answers.values()}
    assert {event.http_request_id for event in billed} == requests, "a bill is of another answer than the output's"
    assert batch.usage.output_tokens == sum(event.completion_tokens for event in billed)


@pytest.mark.parametrize("delays_s", [(0.05, 0.2, 0.35), (0.12, 0.5)])
def test_kill_9_at_any_moment(tmp_path: Path, delays_s: tuple[float, ...]) -> None:
    gateway, batch_id = gateway_of(tmp_path), ""
    for delay_s in delays_s:
        with running(tmp_path, pace_s=PACE_S) as (url, process), client(url) as sdk:
            batch_id = batch_id or create(sdk)
            time.sleep(delay_s)
            process.kill()
            process.wait()
    with running(tmp_path, pace_s=PACE_S) as (url, _), client(url) as sdk:
        batch = until_ended(sdk, batch_id)
        assert_books_are_equal(batch, sdk.files.content(batch.output_file_id).content, gateway.events())


def test_two_processes_share_a_batch_and_one_resumes_it(tmp_path: Path) -> None:
    first, second = gateway_of(tmp_path), gateway_of(tmp_path, 1)
    with running(tmp_path, 0, PACE_S) as (url, process), running(tmp_path, 1, PACE_S) as (other_url, _):
        with client(url) as sdk:
            batch_id = create(sdk)
            while not sdk.batches.retrieve(batch_id).in_progress_at:
                time.sleep(0.01)
        time.sleep(0.3)
        process.kill()
        process.wait()
        with client(other_url) as sdk:
            batch = until_ended(sdk, batch_id)
            events = [*first.events(), *second.events()]
            assert_books_are_equal(batch, sdk.files.content(batch.output_file_id).content, events)
