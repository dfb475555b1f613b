"""Checks one answer: its shape, what its client sees of others, and what it is billed."""

import json
from typing import Any

from gateway.metering.journal.journal import INTERVAL_MS, MAX_LAG_INTERVALS
from tests.whole.clients import Report
from tests.whole.tenants import NAMES, id_of
from tests.whole.upstream_server import FAR

MINUTE_MS = 60_000
UNRECORDED_S = MAX_LAG_INTERVALS * INTERVAL_MS / 1000 + 0.001
"""A crash may lose what streams sent within this."""
_STATUSES = {200, 400, 401, 403, 404, 409, 413, 422, 429, 499, 503, 529}
_UPSTREAM_STATUSES = {502, 504}


def check_answer(report: Report, engine_faulted: bool) -> None:
    call, exchange = report.call, report.exchange
    taken = bytes(exchange.taken)
    where = f"{call}: {taken[:300]!r}"
    for tenant in NAMES:
        assert tenant == call.tenant or f"{tenant}-secret".encode() not in taken, f"{tenant}'s words in {where}"
    if report.status is None:
        assert exchange.gone.is_set() or call.cancelled_after_steps is not None, f"no answer for {where}"
        return
    statuses = _STATUSES | (_UPSTREAM_STATUSES if call.model == FAR else set())
    assert report.status in statuses or (report.status == 500 and engine_faulted), f"{report.status} for {where}"
    if report.status in (429, 503) and exchange.complete and call.endpoint == "chat" and report.status == 429:
        code = json.loads(taken)["error"]["code"]
        waits = code in ("rate_limit_exceeded", "overloaded")
        stated = exchange.headers.get("retry-after-ms")
        assert not waits or stated is not None, f"a refusal without Retry-After: {where}"
        minute = code == "rate_limit_exceeded" and "per minute" in json.loads(taken)["error"]["message"]
        assert not minute or int(stated or 0) <= MINUTE_MS, f"come back in {stated} ms for a minute's limit: {where}"
    if exchange.gone.is_set() or not taken or call.endpoint == "read" or exchange.at_deadline:
        return
    assert exchange.complete, f"an answer without an end: {where}"
    if "text/event-stream" not in exchange.headers.get("content-type", ""):
        json.loads(taken)
    elif call.endpoint in ("chat", "completions"):
        assert taken.endswith(b"data: [DONE]\n\n") or b'"error"' in taken, f"a stream without an end: {where}"


def check_bill(report: Report, events: dict[str, dict[str, Any]], *, disk_failed_at_stop: bool) -> None:
    """A client that has all of an answer is billed for the usage that it states, once. Of an answer that was cut it is
    billed for what was handed to its connection; where the gateway was killed, or stopped while its disk failed, it may
    not be billed for what was written last, within `UNRECORDED_S`."""
    call = report.call
    if report.status == 200 and not report.is_whole and report.tells_token_ids:
        _check_cut(report, events, loses_last=report.exchange.broken_off or disk_failed_at_stop)
        return
    if not report.is_whole or call.endpoint not in ("chat", "completions", "responses", "messages", "embeddings"):
        return
    if call.endpoint == "embeddings":
        return
    usage, request_id = _told(report)
    if usage is None:
        return
    event = events.get(request_id)
    assert event is not None, f"an answer has no usage event: {request_id} of {call}"
    assert event["tenant_id"] == id_of(call.tenant), "another tenant is billed"
    billed = event["prompt_tokens"], event["completion_tokens"]
    assert billed == usage, f"{call.tenant}'s answer states {usage} tokens and {billed} are billed: {call}"


def _check_cut(report: Report, events: dict[str, dict[str, Any]], *, loses_last: bool) -> None:
    shown = report.events()
    if not shown or "id" not in shown[0]:
        return
    event = events.get(shown[0]["id"])
    assert event is not None, f"a part of an answer has no usage event: {report.call}"
    taken, billed = report.taken_tokens(), event["completion_tokens"]
    # Tokens that were handed to the socket, and no others. Each choice may have a token that ends it, without an id.
    most = taken + report.call.n * 2
    assert billed <= most, f"{taken} tokens were taken and {billed} are billed: {report.call}"
    least = report.taken_tokens(UNRECORDED_S) if loses_last else taken
    assert billed >= least, f"{taken} tokens were taken, {least} in time, and {billed} are billed: {report.call}"


def _told(report: Report) -> tuple[tuple[int, int] | None, str]:
    """(prompt, completion) tokens of an answer, and its id."""
    if "text/event-stream" not in report.exchange.headers.get("content-type", ""):
        body = report.body()
        found, request_id = body.get("usage"), body.get("id", "")
    else:
        events = report.events()
        if any("error" in each or each.get("type") in ("error", "response.failed") for each in events):
            return None, ""
        match report.call.endpoint:
            case "responses":
                response = events[-1]["response"]
                found, request_id = response["usage"], response["id"]
            case "messages":
                started = next(each["message"] for each in events if each["type"] == "message_start")
                ended = [each["usage"] for each in events if each["type"] == "message_delta"]
                found = {**started["usage"], **ended[-1]}
                request_id = started["id"]
            case _:
                found, request_id = (
                    next(each["usage"] for each in reversed(events) if each.get("usage")),
                    events[0]["id"],
                )
    if found is None:
        return None, request_id
    if "prompt_tokens" in found:
        return (found["prompt_tokens"], found["completion_tokens"]), request_id
    cached = found.get("cache_read_input_tokens") or 0
    return (found["input_tokens"] + cached, found["output_tokens"]), request_id
