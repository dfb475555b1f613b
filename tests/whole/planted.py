"""The bugs that the simulation finds: an await moved, a release or a notification dropped.

A bug with a seed is known to be shown by it, and the tests plant it there. `--plants` searches for the others.
"""

from collections.abc import Sequence

from tests.support.planting import (
    NothingToBreak,
    Plant,
    always,
    drop,
    drop_assignment,
    drop_deletion,
    drop_except,
    drop_finally,
    force_condition,
    insert_before,
    never,
    plants_in,
    replace,
    replace_argument,
    return_before,
    swap,
    unshield,
)
from tests.whole import planted_upstream
from tests.whole.known import REFUSED_AT_THE_END, SLOW_DISK
from tests.whole.run import FEW_EVENTS, run
from tests.whole.scenario import Scenario, draw

TABLE = {
    "engine.runtime.core": [
        Plant("a submit does not notify the engine thread", "EngineCore._post", drop("notify")),
        Plant("the inbox is read twice", "EngineCore._receive", drop("clear")),
        Plant("the last step's deltas are not sent", "EngineCore._step", force_condition(1, False)),
        Plant("the idle time after an abort is counted as a step's", "EngineCore._step", drop("rest")),
        Plant("an abort shows in the load only after a step", "EngineCore._receive", drop("refresh")),
        Plant("inbox queries precede submissions", "EngineCore._receive", drop("_dispatch"), seed=1),
        Plant(
            "a dead engine loses its unread inbox", "EngineCore._end_all", replace("list(self._inbox)", "[]"), seed=None
        ),
        Plant("a dead engine does not acknowledge an abort", "EngineCore._end_all", drop("done"), seed=None),
        Plant("an abort is not acknowledged", "EngineCore._receive", drop("done"), seed=None),
        Plant("a wait for an adapter has no limit", "EngineCore._update_adapters", drop("end"), seed=53),
        Plant(
            "an idle engine forgets the limit on waits",
            "EngineCore._idle_seconds",
            replace("_ADAPTER_POLL_SECONDS", "None"),
            seed=53,
        ),
    ],
    "engine.runtime.inbox": [
        Plant("an abort is ignored", "apply", drop("abort")),
        Plant("a failed load is not reported", "_advance_load", drop("end"), seed=17),
    ],
    "engine.memory.request_hashes": [
        Plant("adapters share a prefix cache", "extras_of", replace("adapter is None", "True"), seed=3),
    ],
    "engine.runtime.adapter_loading:AdapterLoader": [
        Plant("a slot is used before it is filled", "put", replace("self._memory.is_resident(slot)", "True"), seed=3),
        Plant("the end of a copy is not noticed", "_await_copy", drop("_deliver"), seed=3),
    ],
    "engine.runtime.delta_dispatcher:DeltaDispatcher": [
        Plant("a sink outlives its request", "deliver", drop_deletion("sinks")),
    ],
    "engine.runtime.expected_queue:ExpectedQueue": [
        Plant("a received submission stays reserved", "update", drop("drop")),
        Plant("a submission does not take its reservation", "expect", drop("take"), seed=None),
    ],
    "engine.runtime.output_stream:OutputStream": [
        Plant("a push does not wake the reader", "push", drop("wake")),
        Plant("a paused request is not resumed", "_pop", drop("resume"), seed=10),
        Plant("a full stream does not pause its request", "push", drop("pause")),
        Plant("a closed stream is not aborted", "__aexit__", drop("_close")),
        Plant("a call that failed still runs", "fail", drop("_close"), seed=None),
        Plant("a failure does not wake the reader", "fail", drop("wake")),
    ],
    "engine.runtime.reservation:Reservation": [
        Plant("a reservation is not released", "__exit__", drop("release")),
    ],
    "engine.runtime.streams:OutputDispatcher": [
        Plant("a stream stays registered", "forget", drop("pop")),
    ],
    "engine.runtime.submission:Submitter": [
        Plant("all tenants have one salt", "salt_of", replace("tenant.encode()", "b''")),
    ],
    "engine.scheduling.adapter_queue:AdapterQueue": [
        Plant("a client that leaves while its adapter loads stays parked", "give_back", drop("_unpark"), seed=6),
        Plant("a lease outlives its request", "give_back", drop("release"), seed=3),
    ],
    "engine.workers.frames:FrameReader": [
        Plant(
            "the beginning of a frame is lost",
            "feed",
            replace("del self._buffer[:start]", "self._buffer.clear()"),
            seed=7,
        ),
    ],
    "engine.workers.frames:FrameWriter": [
        Plant("the rest of a frame is not sent", "_run", never("sent < len(frame)"), seed=46),
    ],
    "engine.workers.remote_queue:RemoteQueue": [
        Plant("a worker's load is not seen", "on_report", drop("update"), seed=7),
    ],
    "engine.workers.server:WorkerServer": [
        Plant("the server forgets a request only at abort", "_deliver", drop("pop"), seed=7),
        Plant("an aborted preparation is not answered", "_submit", drop("_send"), seed=16),
        Plant("a preparation outlives its abort", "_abort", drop("cancel"), seed=173),
        Plant("a pause that precedes its request is ignored", "_prepare", drop("pause"), seed=184),
        Plant("an engine that ends fails its requests", "_deliver", never("not self._core.alive"), seed=85),
        Plant("an engine that has ended refuses", "_prepare", always("self._core.alive"), seed=None),
    ],
    "engine.workers.supervisor:Supervisor": [
        Plant("the end of a worker is not reported", "_run_one", drop("on_ended"), seed=8),
    ],
    "engine.workers.worker_requests": [
        Plant(
            "the tokens so far are not replayed",
            "Outstanding.remaining",
            replace("[*submission.token_ids[: submission.prompt_tokens], *self.output]", "submission.token_ids"),
            seed=40,
        ),
        Plant("all choices have one seed", "_singles", replace("(seed,)", "submission.seeds[:1]"), seed=141),
    ],
    "engine.workers.worker_requests:WorkerRequests": [
        Plant(
            "a replay is counted twice",
            "_replay",
            replace("self.replays_total += 1", "self.replays_total += 2"),
            seed=33,
        ),
        Plant("a request is replayed without a limit", "disconnect", never("not each.may_be_replayed"), seed=33),
        Plant("an abort is not released when the worker ends", "disconnect", drop("_release"), seed=8),
        Plant("the queue keeps submissions of an ended worker", "disconnect", drop("on_stop"), seed=85),
        Plant("calls of an ended worker stay without an answer", "disconnect", drop("clear"), seed=101),
        Plant("a pause is forgotten by a replay", "_replay", never("each.is_paused"), seed=42),
        Plant("a pause is not recorded", "_set_paused", drop_assignment("is_paused"), seed=42),
        Plant("cached tokens are the second worker's", "_deliver", never("each.replays"), seed=40),
        Plant("a refused call is not answered", "_answer", drop("on_answer"), seed=209),
        Plant("a request is submitted without a worker", "_require_connected", never("not self._connected"), seed=None),
        Plant(
            "the usage of an aborted choice is forgotten",
            "_release",
            replace("release.record.usages", "dict(release.record.usages)"),
            seed=474,
        ),
        Plant(
            "an aborted request stays outstanding",
            "_release",
            replace("self._outstanding.pop(request_id, None)", "self._outstanding.get(request_id)"),
            seed=8,
        ),
    ],
    "gateway.adapters.book:AdapterBook": [
        Plant(
            "a deleted adapter stays in the names",
            "load",
            replace(
                "by_tenant: dict[str, dict[str, Adapter]] = {}",
                "by_tenant = {tenant: dict(mine) for tenant, mine in self._by_tenant.items()}",
            ),
            seed=6,
        ),
        Plant(
            "a name leads to any tenant's adapter",
            "find",
            replace(
                "self._by_tenant.get(caller.tenant_id, {})",
                "{name: each for mine in self._by_tenant.values() for name, each in mine.items()}",
            ),
            seed=3,
        ),
    ],
    "gateway.adapters.changes:AdapterChanges": [
        Plant(
            "a change has no revision", "_write", replace_argument("values", "revision", "AdapterRow.revision"), seed=6
        ),
    ],
    "gateway.adapters.names": [
        Plant(
            "another tenant's prefix is ignored",
            "own_name",
            replace("rest if prefix == tenant_name else ''", "rest"),
            seed=3,
        ),
    ],
    "gateway.admission.book": [
        Plant("prompts cost nothing", "demands_of", replace("prompt_tokens", "0", 2), seed=24),
        Plant("credit is not limited", "_credit", return_before("Quota", "[]"), seed=15),
        Plant("concurrency is not counted", "demands_of", replace("(1, 0)", "(0, 0)", 2)),
    ],
    "gateway.admission.breaker:CircuitBreaker": [
        Plant("a breaker never closes", "_probe_until_back", drop("_close"), seed=None),
        Plant("waiters on a breaker are not notified", "_close", drop("set_result"), seed=None),
    ],
    "gateway.admission.fair_slots:FairSlots": [
        Plant("a slot to Redis is not passed on", "slot", drop("_pass_on"), seed=6),
        Plant("a slot granted after a timeout is lost", "_take", drop("_pass_on"), seed=None),
    ],
    "gateway.admission.limiter:Limiter": [
        Plant("a cancelled hold is kept", "hold", drop_except(), seed=None),
        Plant("a settled hold is open", "_settle", drop("pop")),
        Plant("settling is cancelled with its caller", "_settle", unshield(), seed=None),
        Plant("holds are not kept alive", "_beat", drop("extend"), seed=None),
    ],
    "gateway.admission.local_share:LocalShare": [
        Plant("a hold without a response is kept", "hold", drop("_release_unheard", 2), seed=None),
        Plant("a settlement without a response is lost", "_settle_shared", drop("_defer"), seed=None),
        Plant("a deferred settlement is not repeated", "_defer", drop_assignment("_merger"), seed=None),
        Plant(
            "a merge that fails is forgotten",
            "_merge",
            replace("self._deferred.rotate(-1)", "self._deferred.popleft()"),
            seed=None,
        ),
        Plant("credit has a local share", "_may_share", always("LimitWindow.EVER not in windows"), seed=None),
    ],
    "gateway.admission.redis_store:RedisStore": [
        Plant(
            "lost data is not recorded again",
            "_call",
            replace("int(bool(self._replica) and self._ledger.has(tenant_id))", "0"),
            seed=4953,
        ),
    ],
    "gateway.admission.replica_ledger:ReplicaLedger": [
        Plant("open holds are not recorded again", "open_holds", return_before("list", "[]"), seed=None),
    ],
    "gateway.generation.admit": [
        Plant("the answer is not cut to the hold", "_hold", replace("hold.granted_tokens", "10**9"), seed=58),
        Plant("a refused request counts as metered", "admitted", insert_before("_hold", "on_metered()")),
        Plant("an admission does not end", "admitted", drop_finally(), seed=None),
        Plant("a hold without a journal entry is kept", "admitted", drop("release"), seed=None),
        Plant("the end does not wait for the usage", "Admission.end", drop("_wait_for_usage"), seed=None),
        Plant("used tokens are released", "Admission._commit", replace("self._counted_tokens()", "0"), seed=None),
    ],
    "gateway.billing.price_book:PriceBook": [
        Plant("an adapter costs as its base", "price_of_adapter", replace("multiplier", "1"), seed=3),
        Plant("an adapter's own price is not used", "price_of_adapter", replace("own is not None", "False"), seed=3),
    ],
    "gateway.generation.candidates:Candidates": [
        Plant(
            "a limit of an adapter is not counted",
            "prepare",
            replace("(model.name, routed.adapter.name)", "(model.name,)"),
            seed=3,
        ),
        Plant("the reservation at a refusing model is kept", "_fall_back", drop("release"), seed=None),
    ],
    "gateway.generation.context": [
        Plant("usage names no adapter", "usage_context_of", replace("routed.adapter.id", "''"), seed=3),
    ],
    "gateway.generation.deltas": [
        Plant("a disconnect is not noticed", "_watch", drop("fail"), seed=61),
        Plant("the watcher outlives its request", "reading", drop("cancel")),
    ],
    "gateway.generation.delivery:StreamSink": [
        Plant("a request is sent before it is on the disk", "on_outputs", drop("before_sending"), seed=7803),
    ],
    "gateway.generation.pipeline": [
        Plant("sent tokens are not recorded", "_pass_on", drop("record_sent")),
        Plant("an answer ends before it is billed", "_end", drop("complete")),
    ],
    "gateway.generation.run:Run": [
        Plant(
            "a request is computed without its adapter",
            "submit",
            replace_argument("EngineCall", "adapter", "None"),
            seed=3,
        ),
    ],
    "gateway.http.middleware": [
        Plant("a request with a usage record is a refusal, too", "refusal_of", replace("state.metered", "False")),
    ],
    "gateway.http.middleware:Authorisation": [
        Plant("a revoked key is no tenant's", "__call__", drop("identify")),
    ],
    "gateway.http.middleware:ErrorMiddleware": [
        Plant("an engine's error is not answered", "__call__", drop_except(2), seed=None),
        Plant("a refused request is not recorded", "__call__", drop("_on_refusal")),
    ],
    "gateway.metering.journal.journal:Journal": [
        Plant("streams run ahead of the journal", "_batch_to_wait_for", replace("time.monotonic()", "-inf")),
        Plant("a stream that waits for the disk is not woken", "_wrote", drop("set_result")),
        Plant("waiters on the journal are not notified", "_write", drop("told")),
        Plant("an ended request stays open in the journal", "_end", drop("discard")),
        Plant("a failed commit is not undone", "_fail", drop("_undo")),
        Plant("a failed sync stays in the log", "_fail", drop("_overwrite"), seed=None),
        Plant("a failed commit raises no error", "_fail", drop("set_exception"), seed=None),
        Plant("a restart drops open requests", "_recover", return_before("begin"), seed=39),
        Plant("the relay is not woken", "_wrote", drop("on_events")),
    ],
    "gateway.metering.journal.meter:Meter": [
        Plant("a request ends twice", "close", drop_assignment("_closed")),
        Plant("progress is not recorded", "advance", drop_assignment("sent")),
        Plant("an abandoned request stays open", "abandon", drop("finish_later")),
        Plant("a failed end is billed in full", "close", replace("otherwise", "None"), seed=None),
    ],
    "gateway.metering.journal.usage_context": [
        Plant(
            "the usage of a cancelled request names no adapter",
            "event_of",
            replace("usage_context.adapter_id", "'' if ending is Ending.CANCELLED else usage_context.adapter_id"),
            seed=5,
        ),
    ],
    "gateway.metering.relay.relay:Relay": [
        Plant("the relay repeats itself", "_succeeded", drop_assignment("_delivered")),
        Plant("deliveries are not acknowledged to the journal", "_succeeded", drop("acknowledge"), seed=None),
        Plant("the relay skips an event", "_read", replace("self._delivered", "self._delivered + 1", 9), seed=None),
        Plant("the relay is not notified of the end", "aclose", drop("set"), seed=None),
    ],
    "gateway.metering.sink.sink:Sink": [
        Plant("the sink commits first", "_store", swap("popleft", "store"), seed=41),
    ],
    "gateway.refusals.refusal_log:RefusalLog": [
        Plant(
            "a flush that is repeated counts twice",
            "_insert",
            replace("getattr(row, name)", "__import__('uuid').uuid4() if name == 'refusal_id' else getattr(row, name)"),
        ),
        Plant(
            "refusals are forgotten while the store is away", "_insert", replace("AnalyticsRefused", "AnalyticsError")
        ),
        Plant("the last refusals are not stored", "aclose", drop("flush", 2)),
    ],
    "gateway.routing.router": [
        Plant(
            "a version without a weight answers",
            "adapter_route",
            replace("adapter.serving", "{version.number: 1 for version in adapter.versions}"),
            seed=3,
        ),
    ],
    "gateway.sessions.sessions": [
        Plant("a turn that failed is kept", "Sessions.turn", drop("_release"), seed=4),
        Plant("a turn stays open", "Sessions.turn", drop("pop")),
        Plant("a turn that waited is counted forever", "_counting", drop_finally(), seed=11),
        Plant("a release is cancelled with its caller", "Sessions._release", unshield(), seed=None),
        Plant("a session's turn is not kept alive", "Sessions._beat", drop("extend"), seed=None),
        Plant("a turn without a response is kept", "Sessions._begin", drop("_release"), seed=None),
    ],
    "gateway.tenancy.authenticator:Authenticator": [
        Plant("a read of keys does not notify its waiters", "_finish_reads", drop("set_result")),
        Plant("a revoked key stays valid", "_age", return_before("_clock", "0.0")),
    ],
    "gateway.tenancy.key_watch:KeyWatch": [
        Plant("a request is watched after its end", "watching", drop("pop")),
    ],
}
PLANTS = plants_in(TABLE | planted_upstream.TABLE)

SHOWN_BY = {
    "streams run ahead of the journal": SLOW_DISK,
    "the last refusals are not stored": REFUSED_AT_THE_END,
}
"""Scenarios in place of seeds."""


def search(names: Sequence[str], seeds: int) -> int:
    """Plant each bug whose name contains one of `names`, and print the first of `seeds` seeds that shows it.

    `names` may include `*`, for all bugs, and `known`, for those with a seed. Returns 1 where a bug is missed, else 0.
    """
    missed = 0
    for plant in PLANTS:
        if "known" in names and plant.seed is None:
            continue
        if not {"*", "known"} & set(names) and not any(name in plant.name for name in names):
            continue
        try:
            first = plant.seed or 0
            scenarios = [SHOWN_BY[plant.name]] if plant.name in SHOWN_BY else map(draw, range(first, first + seeds))
            failures = ((scenario.seed, _failure(plant, scenario)) for scenario in scenarios)
            found = next((f"seed {seed}: {failure[:110]}" for seed, failure in failures if failure), None)
        except NothingToBreak as error:
            found = None
            print(error)
        missed += found is None
        print(f"{plant.name}: {found or 'missed'}", flush=True)
    return 1 if missed else 0


def _failure(plant: Plant, scenario: Scenario) -> str | None:
    """The failure of a scenario with the bug, None without one.

    A bug that makes a loop takes all events that a run may have. So the first run may have few, if those are enough for
    the scenario without the bug.
    """
    with plant.planted():
        outcome = run(scenario, FEW_EVENTS)
    if outcome.events < FEW_EVENTS or run(scenario, FEW_EVENTS).failure is None:
        return outcome.failure
    with plant.planted():
        return run(scenario).failure
