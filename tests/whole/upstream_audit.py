"""Checks requests to a model of another server: what their clients have is what it sent, and so is their bill."""

from collections.abc import Iterable, Mapping

from gateway.metering.event import UsageEvent
from gateway.upstreams.breaker import BreakerState
from gateway.upstreams.model import UpstreamModel
from tests.whole.clients import Report
from tests.whole.upstream_server import FAR, Served, UpstreamServer
from tests.whole.worker_audit import Shown, shown_in

_FAILURES = (502, 504)
"""Statuses of a request that the server did not answer."""


def left_in(model: UpstreamModel) -> list[str]:
    """Resources that a gateway's client of the server still holds, or because of which it would refuse a request."""
    load = model.load
    load.check()
    held = {
        "requests in flight": load.in_flight,
        "waiting requests": load.waiting,
        "reservations": load.reservations,
        "trials": model.breaker._trials,
    }
    left = [f"{FAR} has {count} {name}" for name, count in held.items() if count]
    left += [f"{FAR} has an empty queue of {load.queue_depth}"] if load.queue_depth else []
    if model.breaker.state is BreakerState.OPEN or model._retry_after_s() is not None:
        left.append(f"{FAR} gets no requests")
    return left


def left_at(server: UpstreamServer) -> list[str]:
    """Responses that are still sent."""
    return [f"{server.open} open responses"] if server.open else []


def check_served(upstreams: Iterable[UpstreamModel]) -> None:
    """After a request that the server has answered, further ones pass."""
    for model in upstreams:
        assert model.breaker.state is BreakerState.CLOSED, f"the breaker of {model.name} is {model.breaker.state}"


def check_status(server: UpstreamServer, report: Report) -> None:
    """Only a request to a server that was disturbed fails because of it."""
    assert report.status not in _FAILURES or (server.is_faulted and report.call.model == FAR), (
        f"{report.status} for {report.call}: {bytes(report.exchange.taken[:300])!r}"
    )
    assert server.is_faulted or b'"upstream_' not in report.exchange.taken, f"the server failed on {report.call}"


def check_answers(server: UpstreamServer, reports: Iterable[Report], events: Iterable[UsageEvent]) -> None:
    """The client has the beginning of what the server computed; all of it where it ended well. It is billed for no more
    than the server has sent, and for the usage that the server reports of a whole answer."""
    by_request = {event.request_id: event for event in events if event.served_model == FAR}
    for event in by_request.values():
        _check_event(server, event)
    for report in reports:
        if report.status != 200 or report.call.endpoint not in ("chat", "completions"):
            continue
        request_id, shown = shown_in(report)
        if request_id not in by_request or not shown:
            continue
        _check_shown(server.served.get(request_id, []), shown, report)
        if report.is_whole and b'"error"' not in report.exchange.taken and server.config.upstream != "none":
            _check_whole(server.served[request_id], by_request[request_id], report)


def _check_shown(served: list[Served], shown: Mapping[int, Shown], report: Report) -> None:
    """Choices are numbered over the prompts of a request, each of which is a call of its own."""
    by_call = {each.request_id: each.texts for each in served}
    texts = [text for _, texts in sorted(by_call.items()) for text in texts]
    where = f"{shown} is shown of {texts}: {report.call}"
    if report.call.endpoint == "completions" and not report.call.stream:  # may be the best of more choices
        assert all(each.text in texts for each in shown.values()), where
        return
    for number, each in shown.items():
        assert texts[number].startswith(each.text), where
        assert not each.ended or texts[number] == each.text, where


def _check_whole(served: list[Served], event: UsageEvent, report: Report) -> None:
    calls = {each.request_id: each for each in served}.values()
    if not all(each.is_reported for each in calls):  # the connection broke after the end of the answer
        return
    stated = sum(each.prompt_tokens for each in calls), sum(sum(each.tokens) for each in calls)
    billed = event.prompt_tokens, event.completion_tokens
    assert billed == stated, f"the server reports {stated} tokens, and {billed} are billed: {report.call}"


def _check_event(server: UpstreamServer, event: UsageEvent) -> None:
    sent = sum(sum(each.sent) for each in server.served.get(event.request_id, []))
    assert event.completion_tokens <= sent, f"{event.completion_tokens} of {sent} tokens are billed: {event}"
