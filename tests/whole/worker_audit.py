"""Checks engines in processes of their own, and that each answer has the tokens of an undisturbed engine.

That holds wherever the engine is, and however often its process ended while it computed the answer.
"""

from collections.abc import Iterable, Mapping, Sequence

from engine.request import STANDARD
from engine.runtime.submission import Submission
from gateway.metering.event import UsageEvent
from tests.whole.clients import Report
from tests.whole.submitted import Answer, answers, request_ids
from tests.whole.workers import SeenEngine, WorkerHost
from tests.whole.world import World

SETTLED_S = 0.5
"""Within this an answer is affected by what its client's process has noticed of its worker."""
ENGINE_ERRORS = (b'"engine_error"', b"The model failed to process")


def left_in(engine: SeenEngine) -> list[str]:
    """What the client and the server still hold for requests that have ended, and how their queues differ."""
    requests, process = engine.requests, engine.host.current
    requests.check()
    left = [f"{len(requests)} outstanding requests"] if len(requests) else []
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
    """Whether its engine could not compute it: no worker could be started, or two ended, or one refused a replay."""
    host = _host_of(report)
    if host is None or report.ended_s is None:
        return False
    since_s, until_s = report.began_s - SETTLED_S, report.ended_s + SETTLED_S
    ends = [at_s for at_s in host.ended_s if since_s <= at_s <= until_s]
    failed = [at_s for at_s in host.start_failed_s if since_s <= at_s <= until_s]
    return len(ends) > 1 or bool(failed) or bool(host.refused_replays) or report.gateway.services.drain.begun


def check_answers(
    world: World, reports: Iterable[Report], events: Mapping[str, UsageEvent], *, engine_faulted: bool
) -> None:
    """Whole answers have the tokens of an undisturbed engine. No other engine's end fails a request. What a request is
    billed has been computed for it."""
    by_request = {event.request_id: event for event in events.values()}
    for report in reports:
        _check_tokens(world, report)
        if _host_of(report) is not None and not engine_faulted and report.call.endpoint != "read":
            _check_error(report)
        _check_refused(report, by_request)
    for event in events.values():
        _check_event(world, event)


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
    if report.status != 503 or b'"engine_unavailable"' not in report.exchange.taken:
        return
    host = _host_of(report)
    assert host is not None, f"an engine without a process is started again for {report.call}"
    assert report.ended_s is not None
    until_s = report.ended_s + SETTLED_S
    absent = any(since_s <= until_s and report.began_s <= ends_s + SETTLED_S for since_s, ends_s in host.absent_s)
    assert absent, f"a worker is there, and refused is {report.call}"
    event = events.get(report.exchange.headers.get("x-request-id", ""))
    assert event is None or event.cost_nanodollars == 0, f"a refused request costs {event}"


def _check_tokens(world: World, report: Report) -> None:
    if report.status != 200 or report.call.endpoint not in ("chat", "completions"):
        return
    if "text/event-stream" in report.exchange.headers.get("content-type", ""):
        _check_stream(world, report)
    elif report.is_whole:
        body = report.body()
        calls = world.submitted.calls[body["id"]]
        texts = {each.text for call in calls for each in answers(call)}
        for choice in body["choices"]:
            shown = choice["text"] if "text" in choice else choice["message"]["content"]
            assert (shown or "") in texts, f"{shown!r} is not the text of {report.call}"


def _check_stream(world: World, report: Report) -> None:
    """What was taken of a stream is the beginning of the right answer; all of it where it ended well."""
    shown: dict[int, tuple[list[int], str, bool]] = {}
    for event in report.events():
        for choice in event.get("choices", ()):
            tokens, text, ended = shown.get(choice["index"], ([], "", False))
            more = choice["text"] if "text" in choice else choice["delta"].get("content")
            tokens = [*tokens, *(choice.get("token_ids") or ())]
            shown[choice["index"]] = tokens, text + (more or ""), ended or choice.get("finish_reason") is not None
    if not shown:
        return
    request_id = next(event["id"] for event in report.events() if "id" in event)
    right = [answers(call) for call in world.submitted.calls[request_id]]
    fits = any(_fits(shown, each, tells=report.tells_token_ids) for each in right)
    assert fits, f"{shown} is shown for {right}: {report.call}"


def _fits(shown: Mapping[int, tuple[list[int], str, bool]], right: Sequence[Answer], *, tells: bool) -> bool:
    for index, (tokens, text, ended) in shown.items():
        if index >= len(right):
            return False
        answer = right[index]
        if ended and (text != answer.text or (tells and tuple(tokens) != answer.tokens)):
            return False
        if not answer.text.startswith(text) or (tells and tuple(tokens) != answer.tokens[: len(tokens)]):
            return False
    return True


def _check_event(world: World, event: UsageEvent) -> None:
    """Prompts once, and of answers no more than their client's process has received or was told of."""
    calls = world.submitted.calls.get(event.request_id, [])
    assert event.cached_tokens <= event.prompt_tokens, f"{event.request_id} has more cached tokens than tokens"
    prompts = [sum(each.prompt_tokens for each in call) for call in calls]
    assert event.prompt_tokens <= max(prompts, default=0), f"{event.request_id} has prompts of {prompts}: {event}"
    host = next((each for each in world.workers.hosts if request_ids(calls)[:1] and _knows(each, calls)), None)
    if host is None:
        return
    seen = [host.seen[each] for each in request_ids(calls) if each in host.seen]
    received = sum(len(each.tokens) for each in seen)
    most = sum(max(len(each.tokens), each.consumed) for each in seen)
    assert event.completion_tokens <= received, f"{event.completion_tokens} of {received} tokens are billed: {event}"
    used = event.completion_tokens + event.undelivered_tokens
    assert used <= most, f"{used} tokens are counted, and {most} were computed: {event}"
    if event.completion_tokens:
        _check_cached(host, calls, event)


def _check_cached(host: WorkerHost, calls: Sequence[Sequence[Submission]], event: UsageEvent) -> None:
    """Cached tokens are those of the worker that computed the prompt first."""
    possible = []
    for call in calls:
        firsts = [submission.request_ids[0] for submission in call]
        seen = [host.seen[each].cached_tokens or 0 for each in firsts if each in host.seen]
        possible.append(sum(seen))
    assert event.cached_tokens <= max(possible, default=0), (
        f"{event.cached_tokens} cached tokens are billed, of {possible}: {event}"
    )


def _knows(host: WorkerHost, calls: Sequence[Sequence[Submission]]) -> bool:
    return any(each in host.seen for each in request_ids(calls))
