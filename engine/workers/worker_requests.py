"""The requests that a client has submitted to its worker, and their way to the next one if that ends."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from engine.errors import EngineError, EngineUnavailable
from engine.request import FinishReason, TokenDelta, Usage
from engine.runtime.delta_dispatcher import Sink
from engine.runtime.reservation import Reservation
from engine.runtime.submission import Submission
from engine.workers.messages import Abort, Aborted, Accepted, Deltas, Pause, Refused, Resume, Submit, ToWorker, error_of
from engine.workers.remote_queue import RemoteQueue

MAX_REPLAYS = 3
"""Workers that a request may outlive. One that ends each worker that computes it must not reach all of them: it ends
with the second worker that gave it no token."""

OnAnswer = Callable[[Exception | None], None]
"""Called with why a call was refused, or None: it is in the engine's inbox."""
OnReleased = Callable[[Mapping[str, Usage]], None]
"""Called with the usage of each of the requests that a worker has released."""


@dataclass(slots=True)
class CallRecord:
    """A call of the client. `usages`: of its requests that have ended or were aborted. `on_answer`: None once it was
    called."""

    model: str
    sink: Sink
    on_answer: OnAnswer | None
    usages: dict[str, Usage] = field(default_factory=dict)


@dataclass(slots=True)
class Outstanding:
    """A request whose last delta has not arrived. `call`: the number under which it was submitted last.

    `output`: its tokens so far, of which `replayed_tokens` were submitted with it to the current worker.
    `cached_tokens`: prompt tokens from the cache of the first worker that has delivered.
    """

    record: CallRecord
    submission: Submission
    call: int
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    is_paused: bool = False
    replays: int = 0
    replayed_tokens: int = 0

    @property
    def may_be_replayed(self) -> bool:
        """Whether it may be given to another worker."""
        return not self.replays or (self.replays < MAX_REPLAYS and len(self.output) > self.replayed_tokens)

    @property
    def usage(self) -> Usage:
        """Of the tokens that its client has received; the worker that has computed more has ended."""
        prompt_tokens = self.submission.prompt_tokens
        prefilled_tokens = prompt_tokens if self.output else 0
        return Usage(prompt_tokens, len(self.output), self.cached_tokens, prefilled_tokens=prefilled_tokens)

    def remaining(self) -> Submission:
        """The same request with the tokens that it has."""
        submission = self.submission
        tokens = [*submission.token_ids[: submission.prompt_tokens], *self.output]
        return replace(submission, token_ids=tokens)


@dataclass(slots=True)
class _Release:
    """An abort without its answer."""

    record: CallRecord
    request_ids: Sequence[str]
    on_released: OnReleased


class WorkerRequests:
    """All calls of one client, whatever becomes of its workers. Thread-safe.

    `send` passes a message to the connected worker, and returns False where it cannot. `queues` has the expected queue
    of each model. After `disconnect` requests are kept, and `reconnect` submits them to the next worker.
    """

    def __init__(
        self,
        send: Callable[[ToWorker], bool],
        queues: Mapping[str, RemoteQueue],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._send = send
        self._queues = queues
        self._lock = lock or threading.RLock()
        self._connected = False
        self._closed = False
        self._calls = 0
        self._outstanding: dict[str, Outstanding] = {}
        self._unanswered: dict[int, list[str]] = {}
        self._releases: dict[int, _Release] = {}
        self.replays_total = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._outstanding

    def items(self) -> list[tuple[str, Outstanding]]:
        """The requests that have not ended, by id."""
        with self._lock:
            return list(self._outstanding.items())

    @property
    def connected(self) -> bool:
        """Whether a worker computes them."""
        return self._connected

    def submit(
        self,
        model: str,
        submissions: Sequence[Submission],
        sink: Sink,
        on_answer: OnAnswer,
        reservation: Reservation | None = None,
    ) -> CallRecord:
        """Submit the prompts of one call. `sink` and `on_answer` are called on the thread that receives.

        Raises:
            EngineUnavailable: no worker is connected; the reservation is unchanged.
            EngineError: this is closed.
        """
        with self._lock:
            self._require_connected()
            record = CallRecord(model, sink, on_answer)
            call = self._next_call()
            for submission in submissions:
                self._queues[model].expect(
                    submission.request_ids,
                    submission.service_class.name,
                    submission.prompt_tokens,
                    submission.max_tokens,
                    reservation,
                )
                for one in _singles(submission):
                    self._outstanding[one.request_ids[0]] = Outstanding(record, one, call)
            self._unanswered[call] = [each for submission in submissions for each in submission.request_ids]
            self._send(Submit(call, model, tuple(submissions)))
            return record

    def pause(self, model: str, request_ids: Sequence[str]) -> None:
        """Stop computing these requests. Unknown ids are ignored."""
        self._set_paused(model, request_ids, is_paused=True)

    def resume(self, model: str, request_ids: Sequence[str]) -> None:
        """Compute these requests again. Unknown ids are ignored."""
        self._set_paused(model, request_ids, is_paused=False)

    def abort(self, record: CallRecord, request_ids: Sequence[str], on_released: OnReleased) -> None:
        """End requests of a call. No delta follows. `on_released` has the usage of all that were submitted."""
        with self._lock:
            release = _Release(record, request_ids, on_released)
            self._queues[record.model].on_abort(request_ids)
            if self._connected:
                call = self._next_call()
                self._releases[call] = release
                self._send(Abort(call, record.model, list(request_ids)))
                return
        self._release(release, {})

    def receive(self, message: Accepted | Refused | Aborted | Deltas) -> None:
        """Take in a message of the worker."""
        match message:
            case Deltas():
                self._deliver(message.deltas)
            case Accepted():
                self._answer(message.call, None)
            case Refused():
                self._answer(message.call, error_of(message))
            case Aborted():
                with self._lock:
                    release = self._releases.pop(message.call, None)
                if release is not None:
                    self._release(release, message.usages)

    def connect(self) -> None:
        """A worker is ready. What the last one left is submitted to it."""
        with self._lock:
            self._connected = True
            for request_id, each in self._outstanding.items():
                self._replay(request_id, each)

    def _replay(self, request_id: str, each: Outstanding) -> None:
        each.call = self._next_call()
        each.replays += 1
        each.replayed_tokens = len(each.output)
        self.replays_total += 1
        self._unanswered[each.call] = [request_id]
        submission = each.remaining()
        self._queues[each.record.model].expect(
            submission.request_ids, submission.service_class.name, len(submission.token_ids), submission.max_tokens
        )
        self._send(Submit(each.call, each.record.model, (submission,), is_replay=True))
        if each.is_paused:
            self._send(Pause(each.record.model, [request_id]))

    def take(self, request_id: str) -> Outstanding:
        """Remove a request of a worker that has ended, for another worker's `adopt`."""
        with self._lock:
            assert not self._connected, "the worker still computes its requests"
            return self._outstanding.pop(request_id)

    def adopt(self, request_id: str, each: Outstanding) -> None:
        """Submit a request that another worker has left to this one, which is connected."""
        with self._lock:
            self._require_connected()
            self._outstanding[request_id] = each
            self._replay(request_id, each)

    def disconnect(self) -> None:
        """The worker has ended. Aborted requests are released; those that may not be replayed end with an error."""
        with self._lock:
            self._connected = False
            releases, self._releases = list(self._releases.values()), {}
            self._unanswered.clear()
            for queue in self._queues.values():
                queue.on_stop()
            ended = [request_id for request_id, each in self._outstanding.items() if not each.may_be_replayed]
        for release in releases:
            self._release(release, {})
        self._fail(ended, "the engine process has ended repeatedly while it computed the request")

    def close(self, reason: str) -> None:
        """No worker will be connected any more: all requests end with an error."""
        with self._lock:
            self._closed = True
        self.disconnect()
        self.fail_all(reason)

    def fail(self, request_ids: Sequence[str], error: str) -> None:
        """End these requests with an error, while no worker is connected."""
        self._fail(request_ids, error)

    def fail_all(self, error: str) -> None:
        """End all requests with an error, while no worker is connected."""
        self._fail(list(self._outstanding), error)

    def check(self) -> None:
        """Assert the invariants."""
        with self._lock:
            assert self._connected or not (self._releases or self._unanswered), "an ended worker is waited for"
            calls = {each.call for each in self._outstanding.values()}
            for call, request_ids in self._unanswered.items():
                assert call in calls or not any(each in self._outstanding for each in request_ids)
            for queue in self._queues.values():
                queue.check()

    def _require_connected(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if not self._connected:
            raise EngineUnavailable("the engine process is being started")

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    def _set_paused(self, model: str, request_ids: Sequence[str], *, is_paused: bool) -> None:
        with self._lock:
            for request_id in request_ids:
                if (each := self._outstanding.get(request_id)) is not None:
                    each.is_paused = is_paused
            if self._connected:
                self._send((Pause if is_paused else Resume)(model, list(request_ids)))

    def _deliver(self, deltas: Iterable[TokenDelta]) -> None:
        shares: dict[Sink, list[TokenDelta]] = {}
        with self._lock:
            for delta in deltas:
                each = self._outstanding.get(delta.request_id)
                if each is None:
                    continue  # aborted
                if each.replays:
                    delta = _continued(delta, each)
                elif not each.output:
                    each.cached_tokens = delta.cached_tokens
                each.output += delta.token_ids
                if delta.finish_reason is not None:
                    self._end(delta.request_id, delta.usage)
                shares.setdefault(each.record.sink, []).append(delta)
        for sink, share in shares.items():
            sink(share)

    def _end(self, request_id: str, usage: Usage | None) -> None:
        each = self._outstanding.pop(request_id)
        each.record.usages[request_id] = usage or each.usage

    def _answer(self, call: int, error: Exception | None) -> None:
        with self._lock:
            request_ids = [each for each in self._unanswered.pop(call, ()) if each in self._outstanding]
            records = {id(self._outstanding[each].record): self._outstanding[each].record for each in request_ids}
            if error is not None:
                for request_id in request_ids:
                    self._queues[self._outstanding[request_id].record.model].on_abort([request_id])
            answers = [record for record in records.values() if record.on_answer is not None]
            if error is not None and answers:
                for request_id in request_ids:
                    self._end(request_id, None)
        for record in answers:
            on_answer, record.on_answer = record.on_answer, None
            if on_answer is not None:
                on_answer(error)
        if error is not None and not answers:
            self._fail(request_ids, str(error))  # of a replay

    def _release(self, release: _Release, usages: Mapping[str, Usage]) -> None:
        """Usages: the worker's of the requests that had not ended there; else as the last delta had it."""
        with self._lock:
            known = release.record.usages  # kept: the rest of the call may be aborted later, with these
            for request_id in release.request_ids:
                each = self._outstanding.pop(request_id, None)
                if each is not None:
                    own = usages.get(request_id)
                    known[request_id] = each.usage if own is None else _usage_of(own, each)
            usages = {each: known[each] for each in release.request_ids}
        release.on_released(usages)

    def _fail(self, request_ids: Sequence[str], error: str) -> None:
        shares: dict[Sink, list[TokenDelta]] = {}
        with self._lock:
            for request_id in request_ids:
                if (each := self._outstanding.get(request_id)) is not None:
                    delta = TokenDelta(request_id, finish_reason=FinishReason.ERROR, usage=each.usage, error=error)
                    self._end(request_id, delta.usage)
                    shares.setdefault(each.record.sink, []).append(delta)
        for sink, share in shares.items():
            sink(share)


def _singles(submission: Submission) -> list[Submission]:
    """One submission for each choice."""
    return [
        replace(submission, request_ids=(request_id,), seeds=(seed,))
        for request_id, seed in zip(submission.request_ids, submission.seeds, strict=True)
    ]


def _usage_of(usage: Usage, each: Outstanding) -> Usage:
    """The usage that a worker states, with the cache hits of the worker that computed the prompt first."""
    return replace(usage, cached_tokens=each.cached_tokens) if each.replays and each.output else usage


def _continued(delta: TokenDelta, each: Outstanding) -> TokenDelta:
    """A delta of a request that began on another worker."""
    if not each.output:
        each.cached_tokens = delta.cached_tokens
        return delta
    usage = None if delta.usage is None else replace(delta.usage, cached_tokens=each.cached_tokens)
    return delta._replace(cached_tokens=each.cached_tokens, usage=usage)
