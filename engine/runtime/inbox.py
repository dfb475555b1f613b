"""Messages to the engine thread, and their effect on the model that they are for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.errors import UnservableRequest
from engine.memory.prefix_journal import PrefixJournal
from engine.memory.tiers.orders import Report
from engine.request import FinishReason, Request, TokenDelta
from engine.runtime.adapter_loading import AdapterLoader, CopiedAdapter
from engine.runtime.adapter_loading import LoadProgress as AdapterLoadProgress
from engine.runtime.delta_dispatcher import DeltaDispatcher, Sink
from engine.runtime.kv_copier import KVCopier
from engine.runtime.step_loop import StepLoop
from engine.runtime.wait_prediction import WaitPredictor
from engine.scheduling.plan import Executor
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.stats import SchedulerStats


@dataclass(slots=True)
class ModelRuntime:
    """A model's scheduler, executor, step loop, delta dispatcher, wait predictor, loader of adapters and copier of KV
    blocks. Used on the engine thread alone.

    `unplanned`: requests were added to the scheduler since the last step was planned.
    """

    scheduler: Scheduler
    executor: Executor
    step_loop: StepLoop
    dispatcher: DeltaDispatcher
    wait_predictor: WaitPredictor
    adapters: AdapterLoader | None = None
    kv_copier: KVCopier | None = None
    unplanned: bool = False

    def update_kv(self) -> None:
        """Hand orders to the copier."""
        if self.kv_copier is not None and self.scheduler.fetches is not None:
            self.kv_copier.take(self.scheduler.fetches.update(time.monotonic_ns()))

    def end(self, deltas: list[TokenDelta]) -> None:
        """Deliver last deltas of requests that did not run."""
        if deltas:
            self.dispatcher.release()
            self.dispatcher.deliver(deltas)
            self.wait_predictor.refresh(time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Submit:
    """The choices of one prompt. `posted_ns`: when they were submitted."""

    model: str
    requests: Sequence[Request]
    sink: Sink
    posted_ns: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop computing requests."""

    model: str
    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Resume:
    """Return paused requests to the queue."""

    model: str
    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Abort:
    """End requests. `done`: called when they are used no longer."""

    model: str
    request_ids: Sequence[str]
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AdapterProgress:
    """A load of an adapter has advanced."""

    model: str
    progress: AdapterLoadProgress


@dataclass(frozen=True, slots=True)
class RecordPrefixes:
    """Record the changes of the cached blocks. `on_hashes`: called with all hashes as of then."""

    model: str
    journal: PrefixJournal
    on_hashes: Callable[[list[bytes]], None]


@dataclass(frozen=True, slots=True)
class KVCopied:
    """The copier of the second pool reports."""

    model: str
    report: Report


@dataclass(frozen=True, slots=True)
class ForgetTenant:
    """Drop and erase what is stored of the tenant with this salt."""

    model: str
    salt: bytes


Message = Submit | Pause | Resume | Abort | AdapterProgress | RecordPrefixes | KVCopied | ForgetTenant


def with_posted(runtime: ModelRuntime, stats: SchedulerStats, posted: Sequence[Submit], now_ns: int) -> SchedulerStats:
    """The same stats with the submissions still in the inbox, so that a hanging step shows as a growing queue age."""
    classes = list(stats.classes)
    for message in posted:
        rank = runtime.scheduler.rank_of(message.requests[0].service_class.name)
        stats_of_class = classes[rank]
        age_ns = max(stats_of_class.queue_age_ns, now_ns - message.posted_ns)
        waiting_in_class = stats_of_class.waiting + len(message.requests)
        classes[rank] = replace(stats_of_class, waiting=waiting_in_class, queue_age_ns=age_ns)
    waiting = stats.waiting + sum(len(message.requests) for message in posted)
    return replace(stats, waiting=waiting, classes=tuple(classes))


def apply(runtime: ModelRuntime, message: Message) -> None:
    """Apply one message of the inbox."""
    now_ns = time.monotonic_ns()
    match message:
        case Submit():
            for request in message.requests:
                _admit(runtime, request, message.sink, message.posted_ns)
        case Pause():
            with runtime.wait_predictor.displacing(message.request_ids):
                for request_id in message.request_ids:
                    runtime.scheduler.pause(request_id, now_ns)
        case Resume():
            with runtime.wait_predictor.displacing(message.request_ids):
                for request_id in message.request_ids:
                    runtime.scheduler.resume(request_id, now_ns)
        case Abort():
            with runtime.wait_predictor.displacing(message.request_ids):
                for request_id in message.request_ids:
                    runtime.scheduler.abort(request_id, now_ns)
                    runtime.dispatcher.sinks.pop(request_id, None)
        case AdapterProgress():
            _advance_load(runtime, message.progress)
        case RecordPrefixes():
            message.on_hashes(runtime.scheduler.record_prefixes(message.journal))
        case KVCopied():
            if runtime.scheduler.fetches is not None:
                runtime.scheduler.fetches.report(message.report, now_ns)
        case ForgetTenant():
            if runtime.scheduler.fetches is not None:
                runtime.scheduler.fetches.forget_tenant(message.salt)


def _advance_load(runtime: ModelRuntime, progress: AdapterLoadProgress) -> None:
    """Put what has been read into its slot; what is in its slot can be used, and what failed has failed."""
    loader, adapters, digest = runtime.adapters, runtime.scheduler.adapters, progress.load.source.digest
    assert loader is not None, "a model without adapters loads one"
    if isinstance(progress, CopiedAdapter):
        loaded = progress.succeeded
    elif progress.packed is None:
        loaded = False
    elif not loader.put(progress):
        return  # it is being copied
    else:
        loaded = True
    if loaded:
        adapters.loaded(digest)
    else:
        runtime.end(adapters.fail(digest))


def _admit(runtime: ModelRuntime, request: Request, sink: Sink, posted_ns: int) -> None:
    runtime.dispatcher.sinks[request.id] = sink
    try:
        runtime.scheduler.add(request, posted_ns)
    except UnservableRequest as error:
        runtime.dispatcher.deliver([TokenDelta(request.id, finish_reason=FinishReason.ERROR, error=str(error))])
    else:
        runtime.wait_predictor.on_enqueue(request, time.monotonic_ns())
