"""A fleet that changes under load: each request has its own tokens and one end, whatever workers come and go."""

from collections.abc import Callable
from random import Random

import pytest

from engine.errors import EngineUnavailable
from engine.request import STANDARD, SamplingParams
from engine.runtime.submission import Submission
from engine.workers.membership import Membership
from engine.workers.messages import Draining, ToWorker
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.sources import Member
from tests.support.fake_workers import ANSWER_TOKENS, Client, FakeWorker

ADDRESSES = [f"tcp://10.0.0.{number}:9010" for number in range(5)]


class FakeLink:
    """A connection to a machine: there is one while the machine is up and the link is open."""

    def __init__(self, replica: Replica, is_up: Callable[[], bool]) -> None:
        self.worker = FakeWorker()
        self.worker.replica = replica
        self.restarts_total = 0
        self.closed = False
        self._is_up = is_up

    def start(self) -> None:
        self.follow()

    def follow(self) -> None:
        """The connection is made or lost, as the machine is."""
        if self.worker.alive and not self._is_up():
            self.restarts_total += 1
            self.worker.end()
        elif not self.worker.alive and self._is_up() and not self.closed:
            self.worker.start()

    def send(self, message: ToWorker) -> bool:
        return self.worker.send(message)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.worker.alive:
            self.worker.end()
        self.worker.replica.on_given_up("the engine is closed")


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.set = ReplicaSet()
        self.up = set(ADDRESSES)
        self.links: list[FakeLink] = []
        self.clients: list[Client] = []
        self.kills = 0
        self.removed = 0
        self.membership = Membership(self.set, self._connect)

    def _connect(self, member: Member, replica: Replica) -> FakeLink:
        assert all(link.closed or not link.worker.replica.listed for link in self.at(member.address))
        self.links.append(FakeLink(replica, lambda: member.address in self.up))
        return self.links[-1]

    def at(self, address: str) -> list[FakeLink]:
        return [link for link in self.links if link.worker.replica.name == address]

    def update(self, addresses: list[str]) -> None:
        before = {each.name for each in self.set.replicas if each.listed}
        self.removed += len(before - set(addresses))
        self.membership.update(Member(each) for each in addresses)
        listed = [replica.name for replica in self.set.replicas if replica.listed]
        assert sorted(listed) == sorted(addresses)

    def submit(self) -> None:
        number = len(self.clients)
        ids = tuple(f"c{number}.{choice}" for choice in range(self.random.choice([1, 1, 2])))
        prompt = [self.random.randrange(90) for _ in range(self.random.choice([5, 70]))]
        seeds = tuple(self.random.randrange(1000) for _ in ids)
        params = SamplingParams(n=len(ids))
        client = Client(Submission(ids, seeds, prompt, len(prompt), params, 16, STANDARD, "t", b"salt"))
        try:
            client.record = self.set.submit("m", [client.submission], client.sink, lambda error: None)
        except EngineUnavailable:
            return
        [holder] = [each for each in self.set.replicas if ids[0] in each.requests]
        assert holder.listed, "a removed worker gets a request"
        self.clients.append(client)

    def leave(self) -> None:
        client = self.random.choice(self.clients)
        if not client.left:
            client.left = True
            unread = [each for each in client.submission.request_ids if each not in client.ended]
            assert client.record is not None
            self.set.abort(client.record, unread, client.released.update)

    def move(self, *, with_losses: bool) -> None:
        """Something happens."""
        chance = self.random.random()
        if chance < 0.04:
            self.update(self.random.sample(ADDRESSES, self.random.randrange(len(ADDRESSES) + 1)))
        elif chance < 0.07 and with_losses:
            address = self.random.choice(ADDRESSES)
            self.kills += any(link.worker.alive for link in self.at(address))
            self.up ^= {address}
            for link in self.at(address):
                link.follow()
        elif chance < 0.08 and self.links:
            worker = self.random.choice(self.links).worker
            if worker.alive:
                worker.replica.on_message(Draining())
        elif chance < 0.16:
            self.submit()
        elif chance < 0.17 and self.clients:
            self.leave()
        elif chance < 0.25:
            self.membership.reap()
        elif here := [link.worker for link in self.links if link.worker.alive]:
            worker = self.random.choice(here)
            if worker.to_worker and self.random.random() < 0.5:
                worker.receive()
            elif worker.to_client and self.random.random() < 0.7:
                worker.replica.on_message(worker.to_client.popleft())
            else:
                worker.step()
        self.membership.check()

    def finish(self) -> None:
        """All machines are there, in the fleet, until all requests have ended."""
        self.up = set(ADDRESSES)
        for link in self.links:
            link.follow()
        self.update(ADDRESSES)
        for _ in range(40 * ANSWER_TOKENS):
            for link in self.links:
                worker = link.worker
                if worker.alive:
                    while worker.to_worker:
                        worker.receive()
                    worker.step()
                    while worker.to_client:
                        worker.replica.on_message(worker.to_client.popleft())
            if not len(self.set):
                break
        self.membership.reap()
        self.membership.check()
        self.set.check()
        assert not len(self.set)
        assert sorted(each.name for each in self.set.replicas) == ADDRESSES
        assert all(link.closed != link.worker.replica.listed for link in self.links)


@pytest.mark.parametrize("with_losses", [False, True], ids=["removals", "removals and losses"])
@pytest.mark.parametrize("first", range(0, 40, 20))
def test_requests_end_once_with_their_own_tokens(first: int, with_losses: bool) -> None:
    ended = removed = replays = 0
    for seed in range(first, first + 20):
        world = World(seed)
        world.update(ADDRESSES[:2])
        for _ in range(world.random.randint(200, 1200)):
            world.move(with_losses=with_losses)
        restarts = world.membership.restarts_total
        world.finish()
        for client in world.clients:
            client.check(world.kills)
        assert world.membership.restarts_total >= restarts, "a counter falls"
        ended += sum(len(client.ended) for client in world.clients)
        removed += world.removed
        replays += world.set.former_replays + sum(each.requests.replays_total for each in world.set.replicas)
    assert ended > 100
    assert removed > 50
    assert bool(replays) == with_losses, "a removed worker completes its requests, and a lost one cannot"


def two() -> tuple[World, FakeLink, FakeLink]:
    world = World(1)
    world.update(ADDRESSES[:2])
    first, second = world.links
    return world, first, second


def test_a_removed_worker_stays_until_its_requests_have_ended() -> None:
    world, first, second = two()
    world.submit()
    busy, idle = (first, second) if len(first.worker.replica.requests) else (second, first)
    world.update([])
    assert idle.closed
    assert not busy.closed
    with pytest.raises(EngineUnavailable):
        world.set.reserve("other", "standard")
    while busy.worker.to_worker:
        busy.worker.receive()
    for _ in range(ANSWER_TOKENS):
        busy.worker.step()
    while busy.worker.to_client:
        busy.worker.replica.on_message(busy.worker.to_client.popleft())
    world.membership.reap()
    assert busy.closed
    assert not world.set.replicas
    with pytest.raises(EngineUnavailable):
        world.set.reserve("m", "standard")
    world.clients[0].check(0)


def test_one_that_returns_before_it_is_disconnected_stays_connected() -> None:
    world, first, second = two()
    world.submit()
    busy = first if len(first.worker.replica.requests) else second
    world.update([])
    world.update([busy.worker.replica.name])
    world.membership.reap()
    assert not busy.closed
    assert busy.worker.replica.takes("m")
    world.finish()


def test_requests_of_a_removed_worker_that_is_lost_wait_for_another_address() -> None:
    world, first, second = two()
    world.submit()
    busy = first if len(first.worker.replica.requests) else second
    world.update([])
    world.up.discard(busy.worker.replica.name)
    busy.follow()
    world.membership.reap()
    assert busy.closed
    assert len(world.set) > 0
    world.update([ADDRESSES[4]])
    [now] = [each for each in world.set.replicas if each.listed]
    assert len(now.requests) == len(world.set)
    world.finish()
    world.clients[0].check(1)


def test_another_name_in_the_certificate_is_another_connection() -> None:
    world, first, _ = two()
    address = first.worker.replica.name
    world.membership.update([Member(address, "workers.internal")])
    assert first.closed
    assert len([link for link in world.at(address) if not link.closed]) == 1
