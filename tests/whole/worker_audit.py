"""Checks engines in processes of their own, and that each answer has the tokens of an undisturbed engine.

That holds wherever the engine is, and however often its process ended while it computed the answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import STANDARD
from engine.runtime.submission import Submission
from engine.workers.worker_requests import MAX_REPLAYS
from gateway.metering.event import UsageEvent
from tests.whole.clients import Report
from tests.whole.submitted import Answer, answers, request_ids
from tests.whole.upstream_server import FAR
from tests.whole.workers import SeenEngine, WorkerHost
from tests.whole.world import World

SETTLED_S = 0.5
"""Within this an answer is affected by what its client's process has noticed of its worker."""
ENGINE_ERRORS = (b'"engine_error"', b"The model failed to process")


@dataclass(slots=True)
class Shown:
    """Of a choice, what its client has."""

    tokens: list[int]
    text: str
    ended: bool


def left_in(engine: SeenEngine) -> list[str]:
    """Entries of the client and of the server for requests that have ended, and differences between their queues."""
    requests, process = engine.requests, engine.host.current
    requests.check()
    left = [f"{len(requests)} outstanding requests"] if len(requests) else []
    replays = engine.host.submits.total() - len(engine.host.submits)
    left += engine.host.wrong
    told = requests.replays_total
    left += [f"{told} replays in the metrics, of {replays}"] if told != replays else []
    left += [f"calls without an answer: {sorted(requests._unanswered)}"] if requests._unanswered else []
    left += [f"aborts without an answer: {sorted(requests._releases)}"] if requests._releases else []
    if not engine.ready or process is None or process.server is None or process.core is None:
        return [*left, "no process is ready"]
    server = process.server
    left += [f"its worker has the requests {sorted(server._requests)}"] if server._requests else []
    left += [f"its worker prepares {sorted(server._preparing)}"] if server._preparing else []
    left += [f"its worker is to pause {sorted(server._paused)}"] if server._paused else []
    for name, queue in engine._queues.items():
        wait = engine.predicted_wait(name, STANDARD, 1) if STANDARD.name in queue._rank_of else None
        left += [f"{name} drains in {wait.drain_ns} ns"] if wait is not None and wait.drain_ns else []
        left += [f"{name} has a queue of {queue.queue_depth}"] if queue.queue_depth else []
        left += [f"{name} has {queue.reservations} reservations"] if queue.reservations else []
        left += [f"{name} expects {list(queue._book._submitted)}"] if queue._book._submitted else []
        theirs = process.core._runtimes[name].wait_predictor._taken
        left += [f"{name} has the load {queue._taken}, and its worker {theirs}"] if queue._taken != theirs else []
    return left


def may_fail(report: Report) -> bool:
    """Whether its engine could not compute it: no worker could be started, or two ended."""
    host = _host_of(report)
    if host is None or report.ended_s is None:
        return False
    since_s, until_s = report.began_s - SETTLED_S, report.ended_s + SETTLED_S
    ends = [at_s for at_s in host.ended_s if since_s <= at_s <= until_s]
    failed = [at_s for at_s in host.start_failed_s if since_s <= at_s <= until_s]
    return len(ends) > 1 or bool(failed) or report.gateway.services.drain.begun


def check_answers(
    world: World, reports: Iterable[Report], events: Iterable[UsageEvent], *, engine_faulted: bool
) -> None:
    """Whole answers have the tokens of an undisturbed engine, and are billed for them. A request outlives the end of a
    worker. What a request is billed has been computed for it."""
    by_request, by_http_request = {}, {}
    for event in events:
        if event.served_model != FAR:
            _check_event(world, event)
        by_request[event.request_id] = by_http_request[event.http_request_id] = event
    for report in reports:
        _check_answer(world, report, by_request)
        if _host_of(report) is not None and not engine_faulted and report.call.endpoint != "read":
            _check_error(report)
        _check_refused(report, by_http_request)
    for host in world.workers.hosts:
        most = max(host.submits.values(), default=0)
        assert most <= 1 + MAX_REPLAYS, f"a request is submitted {most} times"


def _host_of(report: Report) -> WorkerHost | None:
    engine = report.gateway.engine
    return engine.host if isinstance(engine, SeenEngine) else None


def _check_error(report: Report) -> None:
    """A request outlives the end of a worker."""
    taken = bytes(report.exchange.taken)
    assert may_fail(report) or not any(each in taken for each in ENGINE_ERRORS), (
        f"the engine failed on {report.call}: {taken[-300:]!r}"
    )


def _check_refused(report: Report, events: Mapping[str, UsageEvent]) -> None:
    """While there is no worker requests are refused, and a refused request is not billed."""
    if report.status != 503:
        return
    event = events.get(report.exchange.headers.get("x-request-id", ""))
    assert event is None or event.cost_nanodollars == 0, f"a refused request is billed: {event}"
    if b'"engine_unavailable"' not in report.exchange.taken:
        return
    host = _host_of(report)
    assert host is not None, f"an engine without a process is started again for {report.call}"
    assert report.ended_s is not None, f"{report.call} has not ended"
    until_s = report.ended_s + SETTLED_S
    absent = any(since_s <= until_s and report.began_s <= ends_s + SETTLED_S for since_s, ends_s in host.absent_s)
    assert absent, f"a worker is there, and refused is {report.call}"


def _check_answer(world: World, report: Report, events: Mapping[str, UsageEvent]) -> None:
    """The client has the beginning of the right answer; all of it where it ended well."""
    if report.status != 200 or report.call.endpoint not in ("chat", "completions"):
        return
    request_id, shown = shown_in(report)
    if not shown or events[request_id].served_model == FAR:
        return
    calls = world.submitted.calls[request_id]
    right = [call for call in calls if _fits(shown, answers(call), report)]
    assert right, f"{shown} is shown, and right is {[answers(call) for call in calls]}: {report.call}"
    if report.is_whole and b'"error"' not in report.exchange.taken:
        _check_billed(report, right, events[request_id])


def _check_billed(report: Report, right: Sequence[Sequence[Submission]], event: UsageEvent) -> None:
    """A whole answer costs its tokens, with the cached tokens of the worker that computed its prompt first."""
    host = _host_of(report)
    possible = []
    for call in right:
        prompt_tokens = sum(each.prompt_tokens for each in call)
        cached_tokens = event.cached_tokens
        if host is not None:
            firsts = [host.seen[each.request_ids[0]].cached_tokens for each in call]
            cached_tokens = sum(each or 0 for each in firsts)
        possible.append((prompt_tokens, cached_tokens, sum(len(each.tokens) for each in answers(call))))
    billed = event.prompt_tokens, event.cached_tokens, event.completion_tokens
    assert billed in possible, f"(prompt, cached, completion) tokens {billed} are billed, not {possible}: {report.call}"


def shown_in(report: Report) -> tuple[str, dict[int, Shown]]:
    """The id of an answer, and its choices as far as they were taken."""
    if "text/event-stream" not in report.exchange.headers.get("content-type", ""):
        if not report.is_whole:
            return "", {}
        body = report.body()
        return body["id"], {each["index"]: Shown([], _text_of(each, "message"), True) for each in body["choices"]}
    events, shown = report.events(), dict[int, Shown]()
    for event in events:
        for choice in event.get("choices", ()):
            each = shown.setdefault(choice["index"], Shown([], "", False))
            each.tokens += choice.get("token_ids") or ()
            each.text += _text_of(choice, "delta")
            each.ended |= choice.get("finish_reason") is not None
    return next((event["id"] for event in events if "id" in event), ""), shown


def _text_of(choice: dict[str, Any], member: str) -> str:
    return (choice["text"] if "text" in choice else choice[member].get("content")) or ""


def _fits(shown: Mapping[int, Shown], right: Sequence[Answer], report: Report) -> bool:
    call = report.call
    if call.endpoint == "completions" and not call.stream and call.variant % 5 == 0:  # the best of more choices
        return all(any(each.text == answer.text for answer in right) for each in shown.values())
    if len(shown) > len(right):
        return False
    for index, each in shown.items():
        text, tokens = right[index].text, right[index].tokens
        if not text.startswith(each.text) or (each.ended and text != each.text):
            return False
        whole = len(tokens) if each.ended else len(each.tokens)
        if report.tells_token_ids and tuple(each.tokens) != tokens[:whole]:
            return False
    return True


def _check_event(world: World, event: UsageEvent) -> None:
    """Prompts once, and of answers no more than the workers have delivered or reported."""
    calls = world.submitted.calls.get(event.request_id, [])
    assert event.cached_tokens <= event.prompt_tokens, f"{event.request_id} has more cached tokens than tokens"
    prompts = [sum(each.prompt_tokens for each in call) for call in calls]
    assert event.prompt_tokens <= sum(prompts), f"{event.request_id} has prompts of {prompts}: {event}"
    host = next((each for each in world.workers.hosts if _knows(each, calls)), None)
    if host is None:
        return
    seen = [host.seen[each] for each in request_ids(calls) if each in host.seen]
    received = sum(len(each.tokens) for each in seen)
    most = sum(max(len(each.tokens), each.consumed) for each in seen)
    assert event.completion_tokens <= received, f"{event.completion_tokens} of {received} tokens are billed: {event}"
    used = event.completion_tokens + event.undelivered_tokens
    assert used <= most, f"{used} tokens are counted, and {most} were computed: {event}"


def _knows(host: WorkerHost, calls: Sequence[Sequence[Submission]]) -> bool:
    return any(each in host.seen for each in request_ids(calls))
