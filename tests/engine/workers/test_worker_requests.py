"""The client's table of requests: usage, replays and releases, whatever becomes of the workers.

The seeds are those of `python -m tests.whole` that have shown a fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.errors import EngineUnavailable
from engine.request import STANDARD, FinishReason, SamplingParams, TokenDelta, Usage
from engine.runtime.submission import Submission
from engine.runtime.wait_prediction import LoadReport
from engine.scheduling.cost import CostCoefficients
from engine.scheduling.wait import ClassCapacity, ClassLoad, QueueSnapshot
from engine.workers.messages import Abort, Aborted, Accepted, Deltas, Pause, Refused, Resume, Submit, ToWorker
from engine.workers.remote_queue import RemoteQueue
from engine.workers.worker_requests import CallRecord, WorkerRequests

MODEL = "m"
PROMPT = (1, 2, 3)
MOST = 12
"""Tokens of an answer."""


def queue() -> RemoteQueue:
    snapshot = QueueSnapshot((ClassLoad(),), (ClassCapacity(8, 8, 8.0),), 0)
    return RemoteQueue(
        {STANDARD.name: 0},
        LoadReport(snapshot, CostCoefficients(1.0, 1.0, 1.0, 1.0), 1.0, (1.0,), ()),
    )


def submission(*request_ids: str) -> Submission:
    seeds = tuple(range(len(request_ids)))
    return Submission(request_ids, seeds, PROMPT, len(PROMPT), SamplingParams(), MOST, STANDARD, "", b"")


def token_at(request_id: str, position: int) -> int:
    """The token of an answer at a position, wherever it is computed."""
    return Random(f"{request_id} {position}").randrange(100)


@dataclass
class Client:
    """One client, and what it has received. `sent`: what its worker was sent."""

    sent: list[ToWorker] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenDelta] = field(default_factory=dict)
    answers: dict[str, Exception | None] = field(default_factory=dict)
    released: dict[str, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = queue()
        self.requests = WorkerRequests(self.send, {MODEL: self.queue})

    def send(self, message: ToWorker) -> bool:
        self.sent.append(message)
        return True

    def submit(self, *request_ids: str) -> CallRecord:
        def on_answer(error: Exception | None) -> None:
            assert request_ids[0] not in self.answers, "a call is answered twice"
            self.answers[request_ids[0]] = error

        return self.requests.submit(MODEL, [submission(*request_ids)], self.sink, on_answer)

    def abort(self, record: CallRecord, *request_ids: str) -> None:
        self.requests.abort(record, request_ids, self.on_released)

    def on_released(self, usages: Mapping[str, Usage]) -> None:
        self.released.update(usages)

    def sink(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ends, "a delta follows the last one"
            self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta


@dataclass
class Worker:
    """Computes the answers of a client one message at a time."""

    client: Client
    random: Random
    cached_tokens: int
    running: dict[str, list[int]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def step(self) -> None:
        """Handle the next message, or compute the next token of some requests."""
        if self.client.sent and self.random.random() < 0.7:
            self.handle(self.client.sent.pop(0))
        elif chosen := [each for each in self.running if each not in self.paused and self.random.random() < 0.6]:
            self.client.requests.receive(Deltas([self.delta(each) for each in chosen]))

    def handle(self, message: ToWorker) -> None:
        match message:
            case Submit():
                for one in message.submissions:
                    for request_id in one.request_ids:
                        self.running[request_id] = list(one.token_ids[one.prompt_tokens :])
                self.client.requests.receive(Accepted(message.call))
            case Pause():
                self.paused |= self.running.keys() & message.request_ids
            case Resume():
                self.paused -= set(message.request_ids)
            case Abort():
                usages = {each: self.usage(each) for each in message.request_ids if each in self.running}
                for request_id in message.request_ids:
                    self.running.pop(request_id, None)
                self.client.requests.receive(Aborted(message.call, usages))

    def delta(self, request_id: str) -> TokenDelta:
        answer = self.running[request_id]
        answer.append(token_at(request_id, len(answer)))
        is_last = len(answer) == MOST
        reason, usage = (FinishReason.LENGTH, self.usage(request_id)) if is_last else (None, None)
        if is_last:
            del self.running[request_id]
        return TokenDelta(
            request_id, (answer[-1],), finish_reason=reason, usage=usage, cached_tokens=self.cached_tokens
        )

    def usage(self, request_id: str) -> Usage:
        return Usage(len(PROMPT), len(self.running[request_id]), self.cached_tokens)


def test_a_choice_that_was_aborted_before_is_released_with_its_usage() -> None:
    """A stop string has aborted it, and its call is aborted before its end is read: seeds 458 and 474."""
    client = Client()
    client.requests.connect()
    record = client.submit("a", "b")
    client.requests.receive(Deltas([TokenDelta("a", (1,)), TokenDelta("b", (2, 3))]))
    client.requests.abort(record, ["a"], lambda _: None)
    client.requests.receive(Aborted(2, {"a": Usage(len(PROMPT), 1)}))
    client.abort(record, "a", "b")
    client.requests.receive(Aborted(3, {"b": Usage(len(PROMPT), 4)}))
    assert {each: usage.completion_tokens for each, usage in client.released.items()} == {"a": 1, "b": 4}


def test_an_abort_has_what_the_worker_computed_or_what_arrived_where_it_has_ended() -> None:
    client = Client()
    client.requests.connect()
    first, second = client.submit("a"), client.submit("b")
    client.requests.receive(Deltas([TokenDelta("a", (1,)), TokenDelta("b", (2,))]))
    client.abort(first, "a")
    client.requests.receive(Aborted(3, {"a": Usage(len(PROMPT), 9)}))
    client.abort(second, "b")
    client.requests.disconnect()
    assert {each: usage.completion_tokens for each, usage in client.released.items()} == {"a": 9, "b": 1}
    assert not len(client.requests)


def test_no_call_is_taken_while_no_worker_is_there() -> None:
    client = Client()
    with pytest.raises(EngineUnavailable):
        client.submit("a")
    client.requests.connect()
    client.submit("a")
    client.requests.disconnect()
    with pytest.raises(EngineUnavailable):
        client.submit("b")
    assert len(client.requests) == 1


def test_a_refused_replay_ends_with_an_error() -> None:
    client = Client()
    client.requests.connect()
    client.submit("a")
    client.requests.receive(Accepted(1))
    client.requests.disconnect()
    client.requests.connect()
    client.requests.receive(Refused(2, "TooManyGrammars", "too many"))
    assert client.ends["a"].error == "too many"
    assert client.answers == {"a": None}
    assert not len(client.requests)


@pytest.mark.parametrize("seed", range(60))
def test_answers_outlive_one_worker_and_nothing_is_left(seed: int) -> None:
    """Random calls, pauses, aborts and ends of workers: each answer is whole with the tokens of an undisturbed one, or
    aborted, or has outlived more workers than it may."""
    random, client = Random(seed), Client()
    client.requests.connect()
    worker = Worker(client, random, cached_tokens=1)
    records: dict[str, CallRecord] = {}
    aborted: set[str] = set()
    first_cached: dict[str, int] = {}
    ends = 0
    for number in range(240):
        draw = random.random()
        live = [each for each in records if each not in client.ends and each not in aborted]
        if draw < 0.08 and number < 160:
            ids = [f"{number}-{index}" for index in range(random.choice((1, 2)))]
            records |= dict.fromkeys(ids, client.submit(*ids))
        elif draw < 0.14 and live:
            chosen = random.choice(live)
            aborted.add(chosen)
            client.abort(records[chosen], chosen)
        elif draw < 0.24 and live:
            change = random.choice((client.requests.pause, client.requests.resume))
            change(MODEL, [random.choice(live)])
        elif draw < 0.26 and number < 200:
            ends += 1
            client.sent.clear()
            client.requests.disconnect()
            client.requests.check()
            client.requests.connect()
            worker = Worker(client, random, cached_tokens=ends + 1)
        else:
            worker.step()
        for request_id in [each for each, tokens in client.tokens.items() if tokens]:
            first_cached.setdefault(request_id, worker.cached_tokens)
        client.requests.check()
    client.requests.resume(MODEL, list(records))
    for _ in range(2_000):
        worker.step()
    client.requests.check()
    assert not len(client.requests)
    assert client.released.keys() == aborted
    for request_id in records.keys() - aborted:
        end, tokens = client.ends[request_id], client.tokens.get(request_id, [])
        assert tokens == [token_at(request_id, position) for position in range(len(tokens))]
        assert end.usage is not None
        assert end.usage.completion_tokens == len(tokens)
        assert end.usage.cached_tokens == first_cached.get(request_id, 0)
        assert (len(tokens) == MOST) == (end.finish_reason is FinishReason.LENGTH)
        assert end.finish_reason is FinishReason.LENGTH or ends > 1
    for request_id in aborted:
        assert client.released[request_id].completion_tokens >= len(client.tokens.get(request_id, []))
