"""The choice of a worker: predicted seconds to the first token, less those that a cached prefix saves."""

import pytest

from engine.request import STANDARD, FinishReason, SamplingParams, TokenDelta, Usage
from engine.runtime.submission import Submission
from engine.scheduling.cost import CostCoefficients
from engine.workers.messages import Abort, Deltas, Draining, Load, Submit, ToWorker, WatchPrefixes
from engine.workers.prefix_index import CHUNK_TOKENS, PrefixIndex, prefix_keys
from engine.workers.replicas import Replica, ReplicaSet
from tests.support.worker_messages import ready


def submission(number: int, tokens: list[int], salt: bytes = b"") -> Submission:
    return Submission((f"r{number}",), (number,), tokens, len(tokens), SamplingParams(), 16, STANDARD, "t", salt)


class Two:
    """Two replicas, and what was sent to each."""

    def __init__(self) -> None:
        self.set = ReplicaSet()
        self.sent: dict[str, list[ToWorker]] = {"a": [], "b": []}
        self.delivered: list[TokenDelta] = []
        for name in self.sent:
            self.set.replicas.append(Replica(name, self.set, self._sender(name)))
        self.a, self.b = self.set.replicas

    def _sender(self, name: str):
        def send(message: ToWorker) -> bool:
            self.sent[name].append(message)
            return True

        return send

    def submit(self, each: Submission):
        return self.set.submit("m", [each], self.delivered.extend, lambda error: None)

    def finish(self, number: int) -> None:
        """The worker takes a request in, and ends it."""
        [replica] = [each for each in self.set.replicas if f"r{number}" in each.requests]
        report = ready().models[0].load._replace(taken_in=(f"r{number}",))
        replica.on_message(Load("m", report))
        last = TokenDelta(f"r{number}", finish_reason=FinishReason.STOP, usage=Usage(1, 1))
        replica.on_message(Deltas([last]))

    def calls(self, name: str) -> list[Submission]:
        return [one for message in self.sent[name] if isinstance(message, Submit) for one in message.submissions]


@pytest.fixture
def two() -> Two:
    two = Two()
    two.a.on_ready(ready())
    two.b.on_ready(ready())
    return two


def test_a_prompt_goes_where_its_prefix_is(two: Two) -> None:
    prompt = list(range(90)) * 10
    two.submit(submission(1, prompt))
    [first] = [name for name in two.sent if two.calls(name)]
    for number in range(2, 5):
        two.finish(number - 1)
        prompt = [*prompt, *[number] * 80]
        two.submit(submission(number, prompt))
        assert len(two.calls(first)) == number


def test_a_prefix_is_not_worth_a_longer_wait(two: Two) -> None:
    prompt = list(range(90)) * 10
    two.submit(submission(1, prompt))
    owner, other = (two.a, two.b) if two.calls("a") else (two.b, two.a)
    two.finish(1)
    assert two.set.choose("m", submission(2, prompt)) is owner
    owner.queues["m"].on_report(ready(waiting_tokens=50_000).models[0].load)
    assert two.set.choose("m", submission(3, prompt)) is other


def test_the_same_prompt_of_another_tenant_is_another_prefix() -> None:
    prompt = list(range(300))
    index = PrefixIndex(1 << 20)
    index.add(prefix_keys(prompt, b"one", None))
    assert index.cached_tokens(prefix_keys(prompt, b"one", None)) == 300 // CHUNK_TOKENS * CHUNK_TOKENS
    assert index.cached_tokens(prefix_keys(prompt, b"two", None)) == 0
    assert index.cached_tokens(prefix_keys(prompt, b"one", "adapter")) == 0
    assert index.cached_tokens(prefix_keys([9, *prompt], b"one", None)) == 0


def test_prefixes_are_forgotten_from_their_ends() -> None:
    index = PrefixIndex(4 * CHUNK_TOKENS)
    long, other = prefix_keys(list(range(256)), b"", None), prefix_keys([7] * 128, b"", None)
    index.add(long)
    index.add(other)
    assert index.cached_tokens(other) == 128
    assert index.cached_tokens(long) == 128


def test_calls_at_once_are_spread_before_any_report(two: Two) -> None:
    for number in range(8):
        two.submit(submission(number, [number + 3] * 200))
    assert len(two.calls("a")) == len(two.calls("b")) == 4


def test_a_slower_worker_gets_less(two: Two) -> None:
    slow = CostCoefficients(*[4 * value for value in (5e6, 1e5, 10.0, 1.0)])
    two.b.on_ready(ready(cost=slow))
    for number in range(10):
        two.submit(submission(number, [number + 3] * 200))
    assert len(two.calls("a")) > len(two.calls("b")) > 0


def test_requests_of_a_lost_worker_move_with_their_tokens(two: Two) -> None:
    two.submit(submission(1, [5, 6, 7]))
    owner, other = (two.a, two.b) if two.calls("a") else (two.b, two.a)
    owner.on_message(Deltas([TokenDelta("r1", (11, 12))]))
    owner.on_ended()
    [moved] = two.calls(other.name)
    assert (list(moved.token_ids), moved.prompt_tokens) == ([5, 6, 7, 11, 12], 3)
    other.on_message(Deltas([TokenDelta("r1", (13,), finish_reason=FinishReason.STOP, usage=Usage(3, 3))]))
    assert [token for delta in two.delivered for token in delta.token_ids] == [11, 12, 13]
    assert not len(two.set)


def test_an_abort_reaches_the_worker_that_has_the_request_now(two: Two) -> None:
    record = two.submit(submission(1, [5, 6, 7]))
    owner, other = (two.a, two.b) if two.calls("a") else (two.b, two.a)
    owner.on_ended()
    released: list[dict[str, Usage]] = []
    two.set.abort(record, ["r1"], lambda usages: released.append(dict(usages)))
    assert [type(message) for message in two.sent[other.name]] == [WatchPrefixes, Submit, Abort]
    other.on_ended()
    assert released == [{"r1": Usage(3, 0)}]
    assert not len(two.set)


def test_a_draining_worker_and_another_version_get_nothing(two: Two) -> None:
    two.a.on_message(Draining())
    for number in range(3):
        two.submit(submission(number, [number + 3] * 20))
    assert len(two.calls("b")) == 3
    two.a.on_ended()
    two.a.on_ready(ready(version="2"))
    two.submit(submission(9, [3] * 20))
    assert len(two.calls("b")) == 4
    assert not two.calls("a")


def test_a_reservation_moves_with_its_request(two: Two) -> None:
    prompt = list(range(90)) * 10
    two.b.prefixes["m"].sent.add(prefix_keys(prompt, b"", None))
    with two.a.queues["m"].reserve("standard") as reservation:
        two.set.submit("m", [submission(1, prompt)], two.delivered.extend, lambda error: None, reservation)
        assert len(two.calls("b")) == 1
        assert two.a.queues["m"].reservations == 0
    for replica in two.set.replicas:
        replica.requests.check()
