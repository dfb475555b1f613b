"""Batches by OpenAI's own client."""

import time
from collections.abc import Callable

import openai
import pytest
from openai.types import Batch

from gateway.tenancy.errors import TenantSuspended
from tests.support.batch_app import ENDED, BatchGateway, as_jsonl, chat_line, read_jsonl
from tests.support.gateway import KEY, PREMIUM_KEY, Server

Run = Callable[..., Batch]


def upload(sdk: openai.OpenAI, lines: list[object]) -> str:
    return sdk.files.create(file=("input.jsonl", as_jsonl(lines)), purpose="batch").id


def create(sdk: openai.OpenAI, lines: list[object], endpoint: str = "/v1/chat/completions", **options) -> Batch:
    return sdk.batches.create(input_file_id=upload(sdk, lines), endpoint=endpoint, completion_window="24h", **options)


def ended(sdk: openai.OpenAI, batch: Batch, seconds: float = 20) -> Batch:
    deadline = time.monotonic() + seconds
    while batch.status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = sdk.batches.retrieve(batch.id)
    return batch


def test_a_batch_of_chats(sdk: openai.OpenAI, gateway: BatchGateway) -> None:
    lines = [chat_line(f"line-{number}", max_tokens=20) for number in range(20)]
    created = create(sdk, lines, metadata={"night": "1"})
    assert (created.object, created.status, created.completion_window) == ("batch", "validating", "24h")
    assert created.expires_at == created.created_at + 24 * 3600
    batch = ended(sdk, created)
    assert batch.status == "completed"
    assert batch.metadata == {"night": "1"}
    assert batch.model == "tiny"
    assert batch.error_file_id is None
    assert batch.errors is None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (20, 20, 0)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    outputs = read_jsonl(sdk.files.content(batch.output_file_id).content)
    assert set(outputs) == {f"line-{number}" for number in range(20)}
    for output in outputs.values():
        assert output["id"].startswith("batch_req_")
        assert output["error"] is None
        assert output["response"]["status_code"] == 200
        assert output["response"]["body"]["choices"][0]["message"]["content"] == "Hello, world!"
    billed = [event for event in gateway.events() if event.cost_nanodollars]
    assert len({event.event_id for event in billed}) == len(billed) == 20
    assert {event.tier_served for event in billed} == {"batch"}
    # Half of 100, 50 and 400 nanodollars a token.
    assert all(
        event.cost_nanodollars == 50 * event.prompt_tokens + 200 * event.completion_tokens - 25 * event.cached_tokens
        for event in billed
    )
    assert {event.endpoint for event in billed} == {"/v1/chat/completions"}
    assert batch.usage.input_tokens == sum(event.prompt_tokens for event in billed)
    assert batch.usage.output_tokens == sum(event.completion_tokens for event in billed)
    file = sdk.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.expires_at == file.created_at + 30 * 86_400


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 20}),
        ("/v1/responses", {"model": "tiny", "input": "hi"}),
        ("/v1/embeddings", {"model": "tiny", "input": ["a", "b"]}),
    ],
)
def test_the_other_endpoints(sdk: openai.OpenAI, endpoint: str, body: dict[str, object]) -> None:
    line = {"custom_id": "one", "method": "POST", "url": endpoint, "body": body}
    batch = ended(sdk, create(sdk, [line], endpoint))
    assert batch.status == "completed", batch
    output = read_jsonl(sdk.files.content(batch.output_file_id).content)["one"]
    assert output["response"]["status_code"] == 200
    assert batch.usage.input_tokens > 0


def test_lines_that_fail_are_in_the_error_file(sdk: openai.OpenAI, gateway: BatchGateway) -> None:
    lines = [chat_line("good"), chat_line("bad", temperature=-1), chat_line("long", "x" * 2000)]
    batch = ended(sdk, create(sdk, lines))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
    assert set(read_jsonl(sdk.files.content(batch.output_file_id).content)) == {"good"}
    errors = read_jsonl(sdk.files.content(batch.error_file_id).content)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["long"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert len(gateway.events()) == 1


def test_an_invalid_file_fails_the_batch_with_line_numbers(sdk: openai.OpenAI, gateway: BatchGateway) -> None:
    lines = [
        chat_line("one"),
        "{no json}\n",
        "\n",
        chat_line("one"),
        chat_line("two") | {"url": "/v1/completions"},
        chat_line("three") | {"method": "GET"},
        {"custom_id": "four", "method": "POST", "url": "/v1/chat/completions"},
        chat_line("five", model="other"),
        chat_line("six", stream=True),
        chat_line("") | {"custom_id": 7},
        {"method": "POST"},
        "[]\n",
    ]
    batch = ended(sdk, create(sdk, lines))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.request_counts.total == 0
    assert [(each.line, each.code, each.param) for each in batch.errors.data] == [
        (2, "invalid_json_line", None),
        (3, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "mismatched_url", "url"),
        (6, "invalid_method", "method"),
        (7, "missing_required_parameter", "body"),
        (8, "mismatched_model", "body.model"),
        (9, "unsupported_parameter", "body.stream"),
        (10, "invalid_custom_id", "custom_id"),
        (11, "missing_required_parameter", "custom_id"),
        (12, "invalid_json_line", None),
    ]
    assert gateway.events() == []


def test_an_empty_file_fails_the_batch(sdk: openai.OpenAI) -> None:
    batch = ended(sdk, create(sdk, []))
    assert [each.code for each in batch.errors.data] == ["empty_file"]


VALID = {"input_file_id": "file-none", "endpoint": "/v1/responses", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({}, "input_file_id"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": dict.fromkeys(map(str, range(17)), "")}, "metadata"),
        ({"color": 1}, "color"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_a_bad_body_is_refused_by_name(sdk: openai.OpenAI, change: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.post("/batches", body=VALID | change, cast_to=object)
    assert refused.value.param == param


def test_cancel_keeps_what_is_done(sdk: openai.OpenAI, gateway: BatchGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.batches.batch_run.CONTROL_S", 0.05)
    gateway.engine.pace_s = 0.03
    lines = [chat_line(f"line-{number}", max_tokens=20) for number in range(400)]
    batch = create(sdk, lines)
    deadline = time.monotonic() + 15
    while not batch.request_counts.completed:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        batch = sdk.batches.retrieve(batch.id)
    cancelled = sdk.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    batch = ended(sdk, batch)
    assert batch.status == "cancelled"
    outputs = read_jsonl(sdk.files.content(batch.output_file_id).content)
    errors = read_jsonl(sdk.files.content(batch.error_file_id).content)
    assert 0 < len(outputs) < 400
    assert set(outputs) | set(errors) == {f"line-{number}" for number in range(400)}
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert all(each["response"] is None for each in errors.values())
    assert len([event for event in gateway.events() if event.cost_nanodollars]) == len(outputs)
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status"):
        sdk.batches.cancel(ended(sdk, create(sdk, [chat_line("a")])).id)


def test_lists_are_pages_of_the_tenants_own(sdk: openai.OpenAI, server: Server) -> None:
    ids = [create(sdk, [chat_line("a")]).id for _ in range(3)]
    listed = sdk.batches.list(limit=2)
    assert [each.id for each in listed.data] == ids[:0:-1]
    assert listed.has_more
    assert [each.id for each in sdk.batches.list(limit=2)] == ids[::-1]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=PREMIUM_KEY, max_retries=0) as other:
        assert list(other.batches.list()) == []
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(ids[0])
    for batch_id in ids:
        ended(sdk, sdk.batches.retrieve(batch_id))


def test_a_suspended_tenants_batch_stops_and_resumes(sdk: openai.OpenAI, gateway: BatchGateway, monkeypatch) -> None:
    monkeypatch.setattr("gateway.batches.runner.RETRY_S", 0.1)
    monkeypatch.setattr("gateway.batches.batch_run.CONTROL_S", 0.05)
    monkeypatch.setattr("gateway.tenancy.key_watch.CHECK_S", 0.05)
    gateway.engine.pace_s = 0.02
    batch = create(sdk, [chat_line(f"line-{number}", max_tokens=20) for number in range(200)])
    key_id = gateway.authenticator.principals[KEY].key_id
    while not (batch := sdk.batches.retrieve(batch.id)).request_counts.completed:
        time.sleep(0.02)
    gateway.authenticator.ended[key_id] = TenantSuspended("the tenant is suspended")
    time.sleep(0.3)  # running lines end before the batch is looked at
    gateway.keys.suspended.add(key_id)
    time.sleep(0.5)
    calls = len(gateway.engine.calls)
    time.sleep(0.5)
    assert len(gateway.engine.calls) == calls
    assert sdk.batches.retrieve(batch.id).status == "in_progress"
    gateway.keys.suspended.clear()
    gateway.authenticator.ended.clear()
    batch = ended(sdk, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", 200)
    assert len([event for event in gateway.events() if event.cost_nanodollars]) == 200


def test_a_revoked_keys_batch_is_cancelled(sdk: openai.OpenAI, gateway: BatchGateway, monkeypatch) -> None:
    monkeypatch.setattr("gateway.batches.batch_run.CONTROL_S", 0.05)
    gateway.engine.pace_s = 0.05
    batch = create(sdk, [chat_line(f"line-{number}", max_tokens=20) for number in range(200)])
    while sdk.batches.retrieve(batch.id).status != "in_progress":
        time.sleep(0.02)
    gateway.keys.revoked.add(gateway.authenticator.principals[KEY].key_id)
    assert ended(sdk, batch).status == "cancelled"


def test_a_busy_engine_delays_lines_and_fails_none(sdk: openai.OpenAI, gateway: BatchGateway, monkeypatch) -> None:
    monkeypatch.setattr("gateway.batches.line_run.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("gateway.batches.line_run.LONGEST_PAUSE_S", 0.1)
    gateway.engine.wait_ms = 10**9
    batch = create(sdk, [chat_line(f"line-{number}") for number in range(5)])
    time.sleep(1.5)
    assert sdk.batches.retrieve(batch.id).request_counts.failed == 0
    gateway.engine.wait_ms = 0
    assert ended(sdk, batch).request_counts.completed == 5
