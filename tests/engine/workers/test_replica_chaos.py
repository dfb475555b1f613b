"""Random loads, losses, drains and hang-ups over several workers: each request has its own tokens, and ends once."""

from random import Random

import pytest

from engine.errors import EngineUnavailable
from engine.request import STANDARD, SamplingParams
from engine.runtime.submission import Submission
from engine.workers.messages import (
    Draining,
)
from engine.workers.replicas import Replica, ReplicaSet
from tests.support.fake_workers import ANSWER_TOKENS, Client, FakeWorker


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
            client.check(self.kills)


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
