"""The bugs that the simulation has to find, each in a seam: an await moved, a release forgotten, a notify dropped."""

from collections.abc import Sequence

from tests.whole.known import SLOW_DISK
from tests.whole.planting import (
    Plant,
    drop,
    drop_assignment,
    drop_deletion,
    replace,
    return_before,
    swapped,
    unshielded,
    without_except,
    without_finally,
    without_if,
)
from tests.whole.run import run
from tests.whole.scenario import Scenario, draw

PLANTS = [
    # Between the event loop and the engine thread
    Plant("a submit wakes nobody", "engine.runtime.core:EngineCore._post", drop("notify")),
    Plant("the inbox is read twice", "engine.runtime.core:EngineCore._receive", drop("clear")),
    Plant("an abort is not obeyed", "engine.runtime.core:_apply", drop("abort")),
    Plant("the last step's deltas stay", "engine.runtime.core:EngineCore._step", without_if(1, taken=False)),
    Plant(
        "a sink outlives its request", "engine.runtime.delta_dispatcher:DeltaDispatcher.deliver", drop_deletion("sinks")
    ),
    Plant("what is read wakes nobody", "engine.runtime.output_stream:OutputStream.push", drop("wake")),
    Plant("a paused request is not resumed", "engine.runtime.output_stream:OutputStream._pop", drop("resume")),
    Plant("nobody is paused", "engine.runtime.output_stream:OutputStream.push", drop("pause")),
    Plant("a stream stays registered", "engine.runtime.streams:OutputDispatcher.forget", drop("pop")),
    Plant("a closed stream goes on", "engine.runtime.output_stream:OutputStream.__aexit__", drop("_close")),
    Plant("all tenants have one salt", "engine.engine:Engine._requests", replace("tenant.encode()", "b''")),
    # Between the streams and the socket
    Plant("a call that failed still runs", "engine.runtime.output_stream:OutputStream.fail", drop("_close")),
    Plant("a reader that waits learns of no failure", "engine.runtime.output_stream:OutputStream.fail", drop("wake")),
    Plant("a disconnect is not noticed", "gateway.generation.deltas:_watch", drop("fail")),
    Plant("the watcher outlives its request", "gateway.generation.deltas:reading", drop("cancel")),
    Plant("what was sent is not noted", "gateway.generation.pipeline:_read", drop("record_sent")),
    Plant("an answer ends before it is billed", "gateway.generation.pipeline:_end", drop("complete")),
    # Admission
    Plant(
        "the answer is not cut to the hold", "gateway.generation.admit:_hold", replace("hold.granted_tokens", "10**9")
    ),
    Plant("a cancelled hold is kept", "gateway.admission.limiter:Limiter.hold", without_except()),
    Plant("a settled hold is open", "gateway.admission.limiter:Limiter._settle", drop("pop")),
    Plant("settling is cancelled with its caller", "gateway.admission.limiter:Limiter._settle", unshielded()),
    Plant("prompts cost nothing", "gateway.admission.book:demands_of", replace("prompt_tokens", "0", 2)),
    Plant("credit binds nobody", "gateway.admission.book:_credit", return_before("Quota", "[]")),
    Plant("one slot more", "gateway.admission.book:demands_of", replace("(1, 0)", "(0, 0)", 2)),
    # The journal and what comes after it
    Plant(
        "a request is sent before it is on the disk",
        "gateway.generation.delivery:StreamSink.on_outputs",
        drop("before_sending"),
    ),
    Plant(
        "streams run ahead of the journal",
        "gateway.metering.journal.journal:Journal._lags",
        replace("time.monotonic()", "since"),
    ),
    Plant(
        "a stream that waits for the disk is not woken",
        "gateway.metering.journal.journal:Journal._wrote",
        drop("set_result"),
    ),
    Plant("the journal's waiters are not told", "gateway.metering.journal.journal:Journal._write", drop("told")),
    Plant("an ended request is under way", "gateway.metering.journal.journal:Journal._end", drop("discard")),
    Plant("a failed commit falls back to nothing", "gateway.metering.journal.journal:Journal._fail", drop("_undo")),
    Plant("a failed sync stays in the log", "gateway.metering.journal.journal:Journal._fail", drop("_overwrite")),
    Plant("nobody hears of a failed commit", "gateway.metering.journal.journal:Journal._fail", drop("set_exception")),
    Plant("a crash forgets what was open", "gateway.metering.journal.journal:Journal._recover", return_before("begin")),
    Plant("a request ends twice", "gateway.metering.journal.meter:Meter.close", drop_assignment("_closed")),
    Plant("progress is not noted", "gateway.metering.journal.meter:Meter.advance", drop_assignment("sent")),
    Plant("an abandoned request stays open", "gateway.metering.journal.meter:Meter.abandon", drop("finish_later")),
    Plant("a failed end is billed in full", "gateway.metering.journal.meter:Meter.close", replace("otherwise", "None")),
    Plant("the relay repeats itself", "gateway.metering.relay.relay:Relay._succeeded", drop_assignment("_delivered")),
    Plant("the relay is not woken", "gateway.metering.journal.journal:Journal._wrote", drop("on_events")),
    Plant("the journal is not told of arrivals", "gateway.metering.relay.relay:Relay._succeeded", drop("acknowledge")),
    Plant("the sink commits first", "gateway.metering.sink.sink:Sink._store", swapped("popleft", "store")),
    # Sessions
    Plant("a turn that failed is kept", "gateway.sessions.sessions:Sessions.turn", drop("_release")),
    Plant("a turn stays open", "gateway.sessions.sessions:Sessions.turn", drop("pop")),
    Plant("a turn that waited is counted for ever", "gateway.sessions.sessions:_counting", without_finally()),
    Plant("a release is cancelled with its caller", "gateway.sessions.sessions:Sessions._release", unshielded()),
    # Keys
    Plant(
        "a key's reader forgets who waits",
        "gateway.tenancy.authenticator:Authenticator._finish_reads",
        drop("set_result"),
    ),
    Plant(
        "a revoked key is good for ever",
        "gateway.tenancy.authenticator:Authenticator._age",
        return_before("_clock", "0.0"),
    ),
    Plant(
        "lost data is not recorded again",
        "gateway.admission.redis_store:RedisStore._call",
        replace("int(bool(self._replica) and self._ledger.has(tenant_id))", "0"),
    ),
    Plant(
        "open holds are not recorded again",
        "gateway.admission.replica_ledger:ReplicaLedger.open_holds",
        return_before("list", "[]"),
    ),
    # What is on its way to a queue
    Plant("an abort shows only after a step", "engine.runtime.core:EngineCore._receive", drop("refresh")),
    Plant("a reservation is not given up", "engine.runtime.reservation:Reservation.__exit__", drop("release")),
    Plant("what is taken in stays on its way", "engine.runtime.wait_prediction:WaitPredictor.refresh", drop("drop")),
    Plant(
        "what has been reserved is still to come",
        "engine.runtime.wait_prediction:WaitPredictor.on_submit",
        drop("take"),
    ),
    Plant("the refusing model's place is kept", "gateway.generation.candidates:Candidates._fall_back", drop("release")),
    Plant("what is asked for comes first", "engine.runtime.core:EngineCore._receive", drop("_dispatch")),
    Plant(
        "what a dead engine has not read is lost",
        "engine.runtime.core:EngineCore._end_all",
        replace("list(self._inbox)", "[]"),
    ),
    Plant("a dead engine answers no abort", "engine.runtime.core:EngineCore._end_all", drop("done")),
    Plant("no engine takes an abort's word back", "engine.runtime.core:EngineCore._receive", drop("done")),
    # Limits while Redis is away
    Plant(
        "a hold that nobody heard of is kept",
        "gateway.admission.local_share:LocalShare.hold",
        drop("_release_unheard", 2),
    ),
    Plant(
        "a settlement without an answer is lost",
        "gateway.admission.local_share:LocalShare._settle_shared",
        drop("_defer"),
    ),
    Plant(
        "what is deferred is never repeated",
        "gateway.admission.local_share:LocalShare._defer",
        drop_assignment("_merger"),
    ),
    Plant(
        "a merge that fails is forgotten",
        "gateway.admission.local_share:LocalShare._merge",
        replace("self._deferred.rotate(-1)", "self._deferred.popleft()"),
    ),
    Plant(
        "credit has a local share",
        "gateway.admission.local_share:LocalShare._may_share",
        replace("LimitWindow.EVER not in windows", "True"),
    ),
    Plant("a breaker never closes", "gateway.admission.breaker:CircuitBreaker._probe_until_back", drop("_close")),
    Plant("who waits for a breaker is not told", "gateway.admission.breaker:CircuitBreaker._close", drop("set_result")),
    Plant("a slot to Redis is not passed on", "gateway.admission.fair_slots:FairSlots.slot", drop("_pass_on")),
    Plant("a slot that comes too late is lost", "gateway.admission.fair_slots:FairSlots._take", drop("_pass_on")),
    Plant("holds are not kept alive", "gateway.admission.limiter:Limiter._beat", drop("extend")),
    Plant("a session's turn is not kept alive", "gateway.sessions.sessions:Sessions._beat", drop("extend")),
    Plant("a turn that nobody heard of is kept", "gateway.sessions.sessions:Sessions._begin", drop("_release")),
    # An admission from its beginning to its end
    Plant("an admission does not end", "gateway.generation.admit:admitted", without_finally()),
    Plant("a hold that no journal knows of is kept", "gateway.generation.admit:admitted", drop("release")),
    Plant("an answer's last word is not waited for", "gateway.generation.admit:Admission.end", drop("_wait_for_usage")),
    Plant(
        "what was used is released",
        "gateway.generation.admit:Admission._commit",
        replace("self._counted_tokens()", "0"),
    ),
    Plant(
        "the relay skips an event",
        "gateway.metering.relay.relay:Relay._read",
        replace("self._delivered", "self._delivered + 1", 9),
    ),
    Plant("the relay does not hear of the end", "gateway.metering.relay.relay:Relay.aclose", drop("set")),
    # Errors
    Plant("an engine's error is nobody's", "gateway.http.middleware:ErrorMiddleware.__call__", without_except(2)),
]


SHOWN_AT: dict[str, int | Scenario] = {
    "a submit wakes nobody": 0,
    "the inbox is read twice": 0,
    "an abort is not obeyed": 0,
    "the last step's deltas stay": 0,
    "a sink outlives its request": 0,
    "what is read wakes nobody": 0,
    "a paused request is not resumed": 10,
    "nobody is paused": 0,
    "a stream stays registered": 0,
    "a closed stream goes on": 0,
    "all tenants have one salt": 0,
    "the watcher outlives its request": 0,
    "what was sent is not noted": 0,
    "an answer ends before it is billed": 0,
    "the answer is not cut to the hold": 29,
    "a settled hold is open": 0,
    "credit binds nobody": 15,
    "one slot more": 0,
    "the journal's waiters are not told": 0,
    "an ended request is under way": 0,
    "a failed commit falls back to nothing": 0,
    "a request ends twice": 0,
    "progress is not noted": 0,
    "an abandoned request stays open": 0,
    "the relay repeats itself": 0,
    "the relay is not woken": 0,
    "prompts cost nothing": 24,
    "a crash forgets what was open": 39,
    "the sink commits first": 41,
    "a turn that failed is kept": 4,
    "a turn stays open": 0,
    "a turn that waited is counted for ever": 11,
    "a key's reader forgets who waits": 0,
    "a revoked key is good for ever": 0,
    "an abort shows only after a step": 0,
    "a reservation is not given up": 0,
    "what is taken in stays on its way": 0,
    "what is asked for comes first": 1,
    "a slot to Redis is not passed on": 6,
    "a reader that waits learns of no failure": 0,
    "a disconnect is not noticed": 0,
    "lost data is not recorded again": 4953,
    "a request is sent before it is on the disk": 7803,
    "streams run ahead of the journal": SLOW_DISK,
    "a stream that waits for the disk is not woken": 0,
}
"""The seed or scenario that shows a bug, where one is known: the tests plant these. `--plants` looks for the others."""


def search(names: Sequence[str], seeds: int) -> int:
    """Plant each bug, and say which seed finds it."""
    missed = 0
    for plant in PLANTS:
        if "known" in names and plant.name not in SHOWN_AT:
            continue
        if not {"*", "known"} & set(names) and not any(name in plant.name for name in names):
            continue
        first = SHOWN_AT.get(plant.name, 0)
        try:
            with plant.planted():
                pass
        except AssertionError as error:
            missed += 1
            print(f"{plant.name}: {error}", flush=True)
            continue
        with plant.planted():
            scenarios = [first] if isinstance(first, Scenario) else map(draw, range(first, first + seeds))
            failures = ((scenario.seed, run(scenario).failure) for scenario in scenarios)
            found = next(((seed, failure) for seed, failure in failures if failure is not None), None)
        missed += found is None
        print(f"{plant.name}: {'missed' if found is None else f'seed {found[0]}: {found[1][:110]}'}", flush=True)
    return 1 if missed else 0


__all__ = ["PLANTS", "SHOWN_AT", "search"]
