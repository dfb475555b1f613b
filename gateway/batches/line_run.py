"""A line until it has a final answer: calls that are refused for now are repeated."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from gateway.batches.input_lines import InputLine
from gateway.batches.line_call import Answer, LineAborted, LineCaller
from gateway.batches.line_log import LineLog
from gateway.batches.records import Batch, BatchUsage
from gateway.batches.results import Result
from gateway.metering.event import UsageEvent
from gateway.refusals.refusal import Refusal
from gateway.tenancy.records import Principal

MAX_FAILURES = 3
"""Calls of a line that fail with 5xx, and do not say when to retry, before its error is final."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SPENT = "insufficient_quota"
"""The budget is spent: no retry helps."""


class LineRunner:
    """Runs lines. `on_refusal` gets the refusal of a line whose error is final."""

    def __init__(self, caller: LineCaller, log: LineLog, on_refusal: Callable[[Refusal], None]) -> None:
        self._caller = caller
        self.log = log
        self._on_refusal = on_refusal

    async def run(
        self, batch: Batch, line: InputLine, caller: Principal, aborted: asyncio.Event, slots: asyncio.Semaphore
    ) -> Result:
        """The final answer of a line. A call holds one of the `slots`.

        Raises:
            LineAborted: `aborted` was set before there was one.
        """
        pause_s, failures = FIRST_PAUSE_S, 0
        while True:
            async with slots:
                if aborted.is_set():
                    raise LineAborted
                answer = await self._caller.call(batch.endpoint, line.body, caller, aborted)
            event = self.log.take(answer.request_id)
            if answer.status == 200:
                return _answered(batch, line, answer, event)
            failures += answer.status >= 500 and answer.retry_after_s is None
            if not _may_retry(answer, failures):
                if answer.refusal is not None:
                    self._on_refusal(answer.refusal)
                return Result(line.number, True, output_object(batch, line, response=_response(answer)))
            wait_s = min(max(answer.retry_after_s or 0.0, pause_s), LONGEST_PAUSE_S)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await _pause(wait_s * (1 + random.random() / 4), aborted)


def output_object(
    batch: Batch, line: InputLine, *, response: dict[str, Any] | None = None, error: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A line of the output file or of the error file."""
    return {"id": batch.request_id(line.number), "custom_id": line.custom_id, "response": response, "error": error}


def not_run(batch: Batch, line: InputLine, code: str, message: str) -> Result:
    """The result of a line that was never run to its end."""
    return Result(line.number, True, output_object(batch, line, error={"code": code, "message": message}))


def _answered(batch: Batch, line: InputLine, answer: Answer, event: UsageEvent | None) -> Result:
    output = output_object(batch, line, response=_response(answer))
    if event is None:
        return Result(line.number, False, output)
    billed = replace(event, event_id=batch.event_id(line.number))
    body = output["response"]["body"]
    details = (body.get("usage") or {}).get("completion_tokens_details") or (body.get("usage") or {}).get(
        "output_tokens_details"
    )
    usage = BatchUsage(
        event.prompt_tokens,
        event.cached_tokens,
        event.completion_tokens,
        (details or {}).get("reasoning_tokens") or 0,
    )
    return Result(line.number, False, output, usage, billed.to_json().decode())


def _response(answer: Answer) -> dict[str, Any]:
    return {"status_code": answer.status, "request_id": answer.request_id, "body": orjson.loads(answer.body)}


def _may_retry(answer: Answer, failures: int) -> bool:
    if answer.status == 429 and orjson.loads(answer.body)["error"].get("code") == SPENT:
        return False
    if answer.status in (409, 429, 503) and answer.retry_after_s is not None:
        return True
    return answer.status >= 500 and failures < MAX_FAILURES


async def _pause(seconds: float, aborted: asyncio.Event) -> None:
    """Raises: LineAborted."""
    try:
        async with asyncio.timeout(seconds):
            await aborted.wait()
    except TimeoutError:
        return
    raise LineAborted
