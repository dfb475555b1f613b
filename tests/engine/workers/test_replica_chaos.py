"""Random loads, losses, drains and hang-ups over several workers: each request has its own tokens, and ends once."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.errors import EngineUnavailable
from engine.request import STANDARD, FinishReason, SamplingParams, TokenDelta, Usage
from engine.runtime.submission import Submission
from engine.workers.messages import (
    Abort,
    Aborted,
    Accepted,
    Deltas,
    Draining,
    FromWorker,
    Load,
    Pause,
    Resume,
    Submit,
    ToWorker,
)
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.worker_requests import CallRecord
from tests.support.worker_messages import ready

ANSWER_TOKENS = 12


def token_of(seed: int, position: int) -> int:
    """The token that any worker draws: a function of seed and position alone."""
    return (31 * seed + 7 * position) % 97


@dataclass
class Computed:
    submission: Submission
    tokens: list[int]
    paused: bool = False

    @property
    def usage(self) -> Usage:
        prompt_tokens = self.submission.prompt_tokens
        return Usage(prompt_tokens, len(self.tokens) - prompt_tokens)


@dataclass
class FakeWorker:
    """Computes what it receives. Messages wait on the way in both directions, and are lost with it."""

    replica: Replica = field(init=False)
    to_worker: deque[ToWorker] = field(default_factory=deque)
    to_client: deque[FromWorker] = field(default_factory=deque)
    requests: dict[str, Computed] = field(default_factory=dict)
    alive: bool = False
    draining: bool = False

    def send(self, message: ToWorker) -> bool:
        if self.alive:
            self.to_worker.append(message)
        return self.alive

    def start(self) -> None:
        self.alive, self.draining = True, False
        self.replica.on_ready(ready())

    def end(self) -> None:
        self.alive = False
        self.to_worker.clear()
        self.to_client.clear()
        self.requests.clear()
        self.replica.on_ended()

    def receive(self) -> None:
        message = self.to_worker.popleft()
        match message:
            case Submit():
                ids = []
                for submission in message.submissions:
                    for request_id in submission.request_ids:
                        assert request_id not in self.requests
                        self.requests[request_id] = Computed(submission, list(submission.token_ids))
                        ids.append(request_id)
                self.to_client.append(Accepted(message.call))
                report = ready().models[0].load._replace(taken_in=tuple(ids))
                self.to_client.append(Load("m", report))
            case Abort():
                known = {each: self.requests.pop(each) for each in message.request_ids if each in self.requests}
                self.to_client.append(Aborted(message.call, {name: each.usage for name, each in known.items()}))
            case Pause() | Resume():
                for request_id in message.request_ids:
                    if request_id in self.requests:
                        self.requests[request_id].paused = isinstance(message, Pause)

    def step(self) -> None:
        deltas = []
        for request_id, each in list(self.requests.items()):
            if each.paused:
                continue
            choice = each.submission.request_ids.index(request_id)
            token = token_of(each.submission.seeds[choice], len(each.tokens))
            each.tokens.append(token)
            ends = each.usage.completion_tokens == ANSWER_TOKENS
            reason = FinishReason.LENGTH if ends else None
            deltas.append(TokenDelta(request_id, (token,), finish_reason=reason, usage=each.usage if ends else None))
            if ends:
                del self.requests[request_id]
        if deltas:
            self.to_client.append(Deltas(deltas))


@dataclass
class Client:
    """A call, and what has come of it."""

    submission: Submission
    record: CallRecord | None = None
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, TokenDelta] = field(default_factory=dict)
    released: dict[str, Usage] = field(default_factory=dict)
    left: bool = False

    def sink(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ended, "a delta after the last"
            self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.ended[delta.request_id] = delta


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.set = ReplicaSet()
        self.workers = [FakeWorker() for _ in range(self.random.randint(1, 4))]
        self.clients: list[Client] = []
        self.kills = 0
        for number, worker in enumerate(self.workers):
            worker.replica = Replica(f"w{number}", self.set, worker.send)
            self.set.replicas.append(worker.replica)

    def submit(self) -> None:
        number = len(self.clients)
        choices = self.random.choice([1, 1, 2, 3])
        prompt = [self.random.randrange(90) for _ in range(self.random.choice([5, 70, 200]))]
        ids = tuple(f"c{number}.{choice}" for choice in range(choices))
        seeds = tuple(self.random.randrange(1000) for _ in ids)
        client = Client(
            Submission(ids, seeds, prompt, len(prompt), SamplingParams(n=choices), 16, STANDARD, "t", b"salt")
        )
        try:
            client.record = self.set.submit("m", [client.submission], client.sink, lambda error: None)
        except EngineUnavailable:
            assert not any(worker.alive and not worker.draining for worker in self.workers)
            return
        self.clients.append(client)

    def leave(self) -> None:
        if here := [each for each in self.clients if not each.left and len(each.ended) < len(each.submission.seeds)]:
            client = self.random.choice(here)
            client.left = True
            unread = [each for each in client.submission.request_ids if each not in client.ended]
            assert client.record is not None
            self.set.abort(client.record, unread, client.released.update)

    def pause(self, *, resume: bool = False) -> None:
        if self.clients:
            ids = self.random.choice(self.clients).submission.request_ids
            (self.set.resume if resume else self.set.pause)("m", ids)

    def move(self) -> None:
        """Something happens."""
        worker = self.random.choice(self.workers)
        chance = self.random.random()
        if chance < 0.02 and worker.alive:
            self.kills += 1
            worker.end()
        elif chance < 0.05 and not worker.alive:
            worker.start()
        elif chance < 0.06 and worker.alive:
            worker.draining = True
            worker.replica.on_message(Draining())
        elif chance < 0.12:
            self.submit()
        elif chance < 0.14:
            self.leave()
        elif chance < 0.18:
            self.pause(resume=self.random.random() < 0.7)
        elif chance < 0.45 and worker.to_worker:
            worker.receive()
        elif chance < 0.75 and worker.to_client:
            worker.replica.on_message(worker.to_client.popleft())
        elif worker.alive:
            worker.step()

    def finish(self) -> None:
        """All workers are there, nothing fails any more, and all clients read."""
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        for client in self.clients:
            self.set.resume("m", client.submission.request_ids)
        for _ in range(40 * ANSWER_TOKENS):
            for worker in self.workers:
                while worker.to_worker:
                    worker.receive()
                worker.step()
                while worker.to_client:
                    worker.replica.on_message(worker.to_client.popleft())

    def check(self) -> None:
        self.set.check()
        assert not len(self.set)
        for worker in self.workers:
            assert not worker.requests, "a worker computes an aborted request"
            assert worker.replica.queues["m"].queue_depth == 0
        for client in self.clients:
            self._check(client)

    def _check(self, client: Client) -> None:
        submission = client.submission
        for request_id, seed in zip(submission.request_ids, submission.seeds, strict=True):
            got = client.tokens.get(request_id, [])
            right = [token_of(seed, submission.prompt_tokens + place) for place in range(ANSWER_TOKENS)]
            assert got == right[: len(got)], f"{request_id} has other tokens"
            last = client.ended.get(request_id)
            if last is None:
                assert client.left, f"{request_id} has no end"
                assert len(got) <= client.released[request_id].completion_tokens <= ANSWER_TOKENS
            elif last.finish_reason is FinishReason.LENGTH:
                assert got == right
                assert last.usage == Usage(submission.prompt_tokens, ANSWER_TOKENS)
            else:
                assert self.kills >= 2, f"{request_id} has failed without two losses: {last.error}"


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_requests_end_once_with_their_own_tokens(first: int) -> None:
    ended = replays = 0
    for seed in range(first, first + 50):
        world = World(seed)
        for worker in world.workers:
            worker.start()
        for _ in range(world.random.randint(200, 1500)):
            world.move()
        world.finish()
        world.check()
        ended += sum(len(client.ended) for client in world.clients)
        replays += sum(replica.requests.replays_total for replica in world.set.replicas)
    assert ended > 100
    assert replays > 20, "the losses met nothing"
