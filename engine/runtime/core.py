"""The engine thread: receives requests, steps each model in turn, and passes on each step's output in one call.

The boundary between the event loop and the engine. Only token ids and `TokenDelta`s cross it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from engine.errors import DeviceLost, EngineError, RankLost
from engine.memory.prefix_journal import PrefixJournal
from engine.memory.tiers import DiskStore
from engine.memory.tiers.orders import Report
from engine.request import FinishReason, Request, TokenDelta
from engine.runtime.adapter_loading import AdapterLoader, AdapterMemory
from engine.runtime.adapter_loading import LoadProgress as AdapterLoadProgress
from engine.runtime.adapter_reading import AdapterReader
from engine.runtime.delta_dispatcher import DeltaDispatcher, Sink
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.inbox import (
    Abort,
    AdapterProgress,
    ForgetTenant,
    KVCopied,
    Message,
    ModelRuntime,
    Pause,
    RecordPrefixes,
    Resume,
    Submit,
    apply,
    with_posted,
)
from engine.runtime.kv_copier import BlockMemory, KVCopier
from engine.runtime.reservation import Reservation
from engine.runtime.step_loop import DeviceClock, StepLoop
from engine.runtime.thread import EngineThread
from engine.runtime.wait_prediction import LoadReport, WaitPredictor
from engine.runtime.watchdog import StepHung, Watchdog
from engine.scheduling.plan import Executor, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.stats import SchedulerStats
from engine.speculation.speculator import Speculator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of the engine thread. `stuck_steps_total`: steps given up by the watchdog since the start.
    `step_age_seconds`: how long the current step has been running, 0 between steps.

    Of an engine in a process of its own: `restarts_total`: processes that have ended; `replays_total`: requests that
    were submitted to the next one.
    """

    alive: bool
    stuck_steps_total: int
    step_age_seconds: float
    restarts_total: int = 0
    replays_total: int = 0


_ADAPTER_POLL_SECONDS = 0.25
"""How often waits for adapters are checked for their limit where there is nothing else to do."""
_COPY_POLL_SECONDS = 0.001
"""How often steps are tried again while requests need blocks that are being copied."""


class EngineCore:
    """Steps its models round robin on the engine thread while there is work, and sleeps otherwise."""

    def __init__(
        self,
        models: Mapping[str, tuple[Scheduler, Executor, Speculator | None]],
        thread: EngineThread,
        *,
        step_timeout_seconds: float,
    ) -> None:
        clock = DeviceClock()
        self._watchdog = Watchdog(step_timeout_seconds, self._give_up)
        self._runtimes: dict[str, ModelRuntime] = {}
        for name, (scheduler, executor, speculator) in models.items():
            before_launch = partial(self._before_launch, name)
            step_loop = StepLoop(scheduler, executor, clock, self._watchdog, speculator, before_launch=before_launch)
            predictor = WaitPredictor(scheduler, step_loop.pace)
            self._runtimes[name] = ModelRuntime(scheduler, executor, step_loop, DeltaDispatcher(), predictor)
        self._inbox: deque[Message] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._stalled = False
        """Whether no model could be stepped because its blocks are being copied."""
        self._lost: DeviceLost | None = None
        self._thread = thread
        self._running: Future[None] | None = None
        self._over = threading.Event()
        """Set once the engine thread has ended or was given up: waiting for it is pointless."""

    def load_adapters(self, model: str, memory: AdapterMemory, reader: AdapterReader, cache_bytes: int) -> None:
        """Load the adapters of a model's requests into its memory. Called before the start, for a model with slots."""
        self._runtimes[model].adapters = AdapterLoader(model, memory, reader, cache_bytes, self._post_progress)

    def keep_kv(self, model: str, memory: BlockMemory, store: DiskStore) -> None:
        """Copy the blocks of a model between its memory and this file, which is closed with the engine. Called before
        the start, for a model whose scheduler has a second pool."""
        self._runtimes[model].kv_copier = KVCopier(model, memory, store, self._post_copied)

    def forget_tenant(self, model: str, salt: bytes) -> None:
        """Drop and erase what the second pool of a model has of the tenant with this salt, from the next step on.

        Raises:
            EngineError: the engine is closed.
        """
        self._post(ForgetTenant(model, salt))

    def start(self) -> None:
        """Start the watchdog and the loop on the engine thread."""
        self._watchdog.start()
        self._running = self._thread.submit(self._run)

    @property
    def alive(self) -> bool:
        """Whether the loop runs: started, not ended, not given up."""
        return self._running is not None and not self._over.is_set()

    @property
    def health(self) -> EngineHealth:
        """The current state. Does not block on the engine thread."""
        return EngineHealth(self.alive, int(self._watchdog.hung), self._watchdog.age_seconds)

    def close(self) -> None:
        """Abort running requests and stop the thread; returns when it has stopped or was given up. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        for runtime in self._runtimes.values():
            if runtime.adapters is not None:
                runtime.adapters.close()
        if self._running is not None:
            self._over.wait()
        for runtime in self._runtimes.values():
            if runtime.kv_copier is not None:
                runtime.kv_copier.close()
        self._watchdog.close()
        self._thread.close(wait=not self._watchdog.hung)

    def lose(self, error: DeviceLost) -> None:
        """End all requests with an error, and the thread: no further step can be computed. Callable from any thread,
        also between steps."""
        with self._wake:
            self._lost = error
            self._wake.notify()

    def submit(
        self, model: str, requests: Sequence[Request], sink: Sink, reservation: Reservation | None = None
    ) -> None:
        """Submit the choices of one prompt. All their deltas go to `sink`, up to and including the last. They consume
        their part of `reservation`.

        Raises:
            EngineError: the engine is closed; the reservation is unchanged.
        """
        self._post(Submit(model, requests, sink, time.monotonic_ns()), reservation)

    def pause(self, model: str, request_ids: Sequence[str]) -> None:
        """Stop computing these requests from the next step on, until they are resumed. Results in flight are dropped
        and sampled again later. Unknown ids are ignored.

        Raises:
            EngineError: the engine is closed.
        """
        self._post(Pause(model, request_ids))

    def resume(self, model: str, request_ids: Sequence[str]) -> None:
        """Return paused requests to the queue. Unknown ids are ignored.

        Raises:
            EngineError: the engine is closed.
        """
        self._post(Resume(model, request_ids))

    def abort(self, model: str, request_ids: Sequence[str], done: Callable[[], None]) -> None:
        """End requests before the next step. No delta follows. Unknown ids are ignored.

        `done` is called when the engine no longer uses these requests, on the thread that calls sinks. It must not
        block.

        Raises:
            EngineError: the engine is closed and no longer uses them.
        """
        self._post(Abort(model, request_ids, done))

    def stats(self, model: str) -> SchedulerStats:
        """A snapshot for metrics, possibly during a step. Requests in the inbox count as waiting."""
        runtime = self._runtimes[model]
        with self._wake:
            posted = [message for message in self._inbox if isinstance(message, Submit) and message.model == model]
        now_ns = time.monotonic_ns()
        stats = runtime.step_loop.stats(now_ns)
        if stats.adapters is not None and runtime.adapters is not None:
            of_adapters = replace(stats.adapters, load_seconds_total=runtime.adapters.load_seconds_total)
            stats = replace(stats, adapters=of_adapters)
        return with_posted(runtime, stats, posted, now_ns)

    def reserve(self, model: str, service_class: str) -> Reservation:
        """Count a request of this class as waiting until it is submitted or the reservation is released."""
        return self._runtimes[model].wait_predictor.reserve(service_class)

    def reservations(self, model: str) -> int:
        """Reservations neither submitted nor released; 0 if no request is in progress."""
        return self._runtimes[model].wait_predictor.reservations

    def predicted_wait(self, model: str, service_class: str, prompt_tokens: int) -> PredictedWait:
        """Predicted wait of a request submitted now. O(classes)."""
        return self._runtimes[model].wait_predictor.predicted_wait(service_class, prompt_tokens)

    def queue_depth(self, model: str) -> int:
        """Requests of all classes that wait, or are reserved and will have to. O(1)."""
        return self._runtimes[model].wait_predictor.queue_depth

    def load_of(self, model: str) -> tuple[Mapping[str, int], LoadReport]:
        """The ranks of a model's classes by their names, and its load."""
        runtime = self._runtimes[model]
        return runtime.scheduler.class_ranks, runtime.wait_predictor.report()

    def report_load(self, model: str, on_report: Callable[[LoadReport], None]) -> Callable[[], None]:
        """Have `on_report` called with each change of a model's load, on the engine thread. It must not block. Returns
        how that ends. Called on one event loop."""
        predictor = self._runtimes[model].wait_predictor
        predictor.listeners = (*predictor.listeners, on_report)

        def end() -> None:
            predictor.listeners = tuple([each for each in predictor.listeners if each is not on_report])

        return end

    def record_steps(self, model: str, on_step: Callable[[StepPlan, int], None] | None) -> None:
        """Have `on_step` called with each step of a model and its time, as `StepLoop.on_step`; None ends that. It must
        not block, and runs before the step's result is committed."""
        self._runtimes[model].step_loop.on_step = on_step

    def record_prefixes(self, model: str, journal: PrefixJournal, on_hashes: Callable[[list[bytes]], None]) -> None:
        """Record the changes of a model's cached blocks from the next step on. `on_hashes` is called with all hashes as
        of then, on the engine thread. It must not block.

        Raises:
            EngineError: the engine is closed.
        """
        self._post(RecordPrefixes(model, journal, on_hashes))

    def _post(self, message: Message, reservation: Reservation | None = None) -> None:
        with self._wake:
            if self._closing:
                raise EngineError("the engine is closed")
            self._inbox.append(message)
            wait_predictor = self._runtimes[message.model].wait_predictor
            if isinstance(message, Submit):
                wait_predictor.on_submit(message.requests, reservation)
            elif isinstance(message, Abort):
                wait_predictor.on_abort(message.request_ids)
            self._wake.notify()

    def _post_progress(self, model: str, progress: AdapterLoadProgress) -> None:
        self._post(AdapterProgress(model, progress))

    def _post_copied(self, model: str, report: Report) -> None:
        self._post(KVCopied(model, report))

    def _run(self) -> None:
        try:
            while self._receive():
                stalled = True
                for runtime in self._runtimes.values():
                    self._step(runtime)
                    stalled = stalled and runtime.step_loop.is_stalled
                self._stalled = stalled
        except StepHung:
            return  # the watchdog has ended all requests
        except DeviceLost as error:
            logger.critical("the device is lost", exc_info=True)
            named = str(error) if isinstance(error, RankLost) else "the engine lost its device"
            self._end_all(FinishReason.ERROR, named)
            return
        except Exception:
            logger.critical("the engine thread crashed", exc_info=True)
        self._end_all(FinishReason.ABORT)

    def _give_up(self) -> None:
        """End all requests with an error because a step hangs. Called on the watchdog's thread; the engine thread is
        inside the step and touches no shared state."""
        self._end_all(FinishReason.ERROR, "a step of the engine timed out")

    def _end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """Deliver a last delta to every request, so that no reader waits forever, whether the thread was closed,
        crashed or hangs."""
        self._over.set()
        self._dispatch()
        with self._wake:
            self._closing = True
            unread = list(self._inbox)
            self._inbox.clear()
        for message in unread:
            match message:
                case Submit():
                    sinks = self._runtimes[message.model].dispatcher.sinks
                    sinks.update((request.id, message.sink) for request in message.requests)
                case Abort():
                    for request_id in message.request_ids:
                        self._runtimes[message.model].dispatcher.sinks.pop(request_id, None)
                    message.done()
                case Pause() | Resume() | AdapterProgress() | RecordPrefixes() | KVCopied() | ForgetTenant():
                    pass  # the request ends with all others below
        for runtime in self._runtimes.values():
            runtime.wait_predictor.on_stop()
            request_ids = [*runtime.dispatcher.sinks]
            runtime.dispatcher.deliver([TokenDelta(id_, finish_reason=reason, error=error) for id_ in request_ids])

    def _receive(self) -> bool:
        """Handle the inbox, blocking on it while there is no other work. Returns False when closing."""
        with self._wake:
            while not (self._closing or self._inbox or self._lost or self._has_work()):
                if not self._wake.wait(self._idle_seconds()):
                    break
            if self._stalled and not (self._closing or self._inbox or self._lost):
                self._wake.wait(_COPY_POLL_SECONDS)  # for a report of the copier
            if self._lost is not None:
                raise self._lost
            messages = list(self._inbox)
            self._inbox.clear()
        if messages:
            self._dispatch()  # held deltas precede the effects of messages
        for message in messages:
            apply(self._runtimes[message.model], message)
        for model in {message.model for message in messages}:
            mine = [message for message in messages if isinstance(message, Submit) and message.model == model]
            taken_in = [request.id for message in mine for request in message.requests]
            self._runtimes[model].unplanned |= bool(taken_in)
            self._runtimes[model].wait_predictor.refresh(time.monotonic_ns(), taken_in)
        for message in messages:
            if isinstance(message, Abort):
                message.done()
        return not self._closing

    def _idle_seconds(self) -> float | None:
        """How long to wait for a message where there is no work. None: for ever."""
        runtimes = self._runtimes.values()
        if any(runtime.scheduler.adapters.waiting for runtime in runtimes):
            return _ADAPTER_POLL_SECONDS
        due_ns = [
            due
            for runtime in runtimes
            if runtime.scheduler.fetches is not None and (due := runtime.scheduler.fetches.next_due_ns) is not None
        ]
        return max(0.0, min(due_ns) - time.monotonic_ns()) / 1e9 if due_ns else None

    def _has_work(self) -> bool:
        return any(runtime.step_loop.has_work for runtime in self._runtimes.values())

    def _update_adapters(self, runtime: ModelRuntime) -> None:
        """Assign the slots of adapters, begin their loads, and fail requests that waited too long for one."""
        adapters = runtime.scheduler.adapters
        if runtime.adapters is None or not (adapters.changed or adapters.waiting):
            return
        now_ns = time.monotonic_ns()
        runtime.end(adapters.expire(now_ns))
        for load in adapters.update(now_ns):
            runtime.adapters.begin(load)

    def _step(self, runtime: ModelRuntime) -> None:
        self._update_adapters(runtime)
        runtime.update_kv()
        if runtime.step_loop.has_work:
            deltas = runtime.step_loop.step()
            runtime.update_kv()
            self._record_step(runtime)
            self._dispatch()  # a no-op if `_before_launch` has done it
            runtime.dispatcher.hold(deltas)
        else:
            runtime.step_loop.rest()
        if runtime.scheduler.async_depth or not self._has_work():
            self._dispatch()  # no step follows with which it would go out

    def _dispatch(self) -> None:
        """Deliver the deltas held for all models."""
        for runtime in self._runtimes.values():
            runtime.dispatcher.release()

    def _before_launch(self, model: str) -> None:
        """A step of `model` has been planned. The requests that it starts no longer wait, so the wait prediction is
        refreshed now rather than after the step."""
        self._dispatch()
        runtime = self._runtimes[model]
        runtime.update_kv()
        if runtime.unplanned:
            runtime.unplanned = False
            runtime.wait_predictor.refresh(time.monotonic_ns())

    def _record_step(self, runtime: ModelRuntime) -> None:
        now_ns = time.monotonic_ns()
        if not runtime.wait_predictor.is_fresh(now_ns):
            runtime.wait_predictor.refresh(now_ns, stepped=True)
