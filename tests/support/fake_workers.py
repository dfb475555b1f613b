"""Workers that compute tokens by a formula, and clients that check them, for tests of what lies between."""

from collections import deque
from dataclasses import dataclass, field

from engine.request import FinishReason, TokenDelta, Usage
from engine.runtime.submission import Submission
from engine.workers.messages import (
    Abort,
    Aborted,
    Accepted,
    Deltas,
    FromWorker,
    Load,
    Pause,
    Resume,
    Submit,
    ToWorker,
)
from engine.workers.replicas import Replica
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

    def check(self, losses: int) -> None:
        """Each request has its own tokens, and one end. `losses`: of workers; two may end a request with an error."""
        submission = self.submission
        for request_id, seed in zip(submission.request_ids, submission.seeds, strict=True):
            got = self.tokens.get(request_id, [])
            right = [token_of(seed, submission.prompt_tokens + place) for place in range(ANSWER_TOKENS)]
            assert got == right[: len(got)], f"{request_id} has other tokens"
            last = self.ended.get(request_id)
            if last is None:
                assert self.left, f"{request_id} has no end"
                assert len(got) <= self.released[request_id].completion_tokens <= ANSWER_TOKENS
            elif last.finish_reason is FinishReason.LENGTH:
                assert got == right
                assert last.usage == Usage(submission.prompt_tokens, ANSWER_TOKENS)
            else:
                assert losses >= 2, f"{request_id} has failed without two losses: {last.error}"
