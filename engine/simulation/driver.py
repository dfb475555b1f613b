"""Runs a scheduler on an executor, and collects its deltas."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.adapters.source import AdapterSource
from engine.request import (
    STANDARD,
    FinishReason,
    Request,
    SamplingParams,
    ServiceClass,
    TokenDelta,
    TokenLogprob,
    Usage,
)
from engine.scheduling.plan import Executor, PendingStep, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.simulation.traffic import EOS_TOKEN, Arrival

DEFAULT_MAX_TOKENS = 16


@dataclass(slots=True)
class Transcript:
    """All deltas of a request. `add` asserts that they form a valid stream."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    usage: Usage | None = None
    error: str | None = None

    def add(self, delta: TokenDelta) -> None:
        assert self.finish_reason is None, f"{delta.request_id} has a delta after its end"
        assert not (delta.prompt_logprobs and self.token_ids), "the prompt's log-probabilities come late"
        assert (delta.finish_reason is None) == (delta.usage is None), "usage comes with the end, and only there"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason
        self.stop_token = delta.stop_token
        self.usage = delta.usage
        self.error = delta.error


def make_request(
    request_id: str,
    tokens: Sequence[int],
    *,
    arrival: int = 0,
    params: SamplingParams | None = None,
    seed: int = 0,
    eos_token_ids: tuple[int, ...] = (),
    tenant: str = "",
    salt: bytes = b"",
    service_class: ServiceClass = STANDARD,
    fork_of: Request | None = None,
    adapter: str = "",
) -> Request:
    """A new request with defaults for simulations and tests."""
    params = params or SamplingParams()
    return Request(
        id=request_id,
        tokens=list(tokens),
        prompt_tokens=len(tokens),
        params=params,
        seed=seed,
        max_tokens=DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens,
        eos_token_ids=eos_token_ids,
        arrival=arrival,
        service_class=service_class,
        tenant=tenant,
        salt=salt,
        fork_of=fork_of,
        adapter=AdapterSource(adapter, Path(adapter)) if adapter else None,
    )


def request_of(arrival: Arrival, number: int, others: Mapping[str, Request]) -> Request:
    """The request of an arrival. `number`: its place in the order of arrival. `others`: earlier requests by id."""
    return make_request(
        arrival.id,
        arrival.tokens,
        arrival=number,
        params=arrival.params,
        seed=arrival.seed,
        eos_token_ids=(EOS_TOKEN,),
        tenant=arrival.tenant,
        salt=arrival.tenant.encode(),
        service_class=arrival.service_class,
        fork_of=None if arrival.fork_of is None else others.get(arrival.fork_of),
        adapter=arrival.adapter,
    )


def run_to_completion(
    scheduler: Scheduler, executor: Executor, requests: Iterable[Request] = (), *, max_steps: int = 10_000
) -> dict[str, Transcript]:
    """Add the requests, then step until all are done. Every invariant is checked after each step.

    The maximum number of steps is in flight.
    """
    in_flight: deque[tuple[StepPlan, PendingStep]] = deque()
    transcripts: dict[str, Transcript] = {}
    for request in requests:
        scheduler.add(request)
    for _ in range(max_steps):
        plan = scheduler.schedule()
        if plan is not None:
            in_flight.append((plan, executor.execute(plan)))
        elif not in_flight:
            assert not scheduler.has_work, "requests are left and nothing is scheduled"
            return transcripts
        if plan is None or len(in_flight) > scheduler.async_depth:
            finished, pending = in_flight.popleft()
            for delta in scheduler.commit(finished, pending.result()):
                transcripts.setdefault(delta.request_id, Transcript()).add(delta)
        scheduler.check()
    raise AssertionError(f"not done after {max_steps} steps")
