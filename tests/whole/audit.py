"""Checks the whole program while it runs, when all clients have gone, and when it has stopped."""

import asyncio
import sqlite3
import time
from collections import Counter
from typing import Any

from fakeredis import FakeRedis

from gateway.admission.store import HOLD_TTL_MS
from gateway.metering.event import Ending, UsageEvent
from tests.whole import adapter_audit, clients, upstream_audit, worker_audit
from tests.whole.adapters import BASE, LIMITED, NAMES
from tests.whole.answers import check_answer, check_bill
from tests.whole.clients import Report
from tests.whole.executor import Faults
from tests.whole.left import left_in
from tests.whole.scenario import Call
from tests.whole.spending import check_credit, check_limits
from tests.whole.tenants import CREDIT, LIMITS, id_of
from tests.whole.threads import Scheduler as Machine
from tests.whole.workers import SeenEngine
from tests.whole.world import Gateway, World

QUIET_S = 90.0
"""Until this long after the last action everything is at rest: holds of processes that died have expired by then."""
PROBE_S = 20.0
"""A lone request of one token takes no longer, whatever the device's speed is."""
PROBE_READ_S = 0.1
"""An adapter's files are read as fast for those requests: within the shortest limit on waits for an adapter."""
WAIT_SLACK_S = 0.35
"""Maximum time from the limit on a wait for an adapter to its end, without the steps under way."""
BACKGROUND = (
    "Relay._run",
    "RefusalLog._run",
    "Refresher._refresh",
    "Sink.run",
    "_bury",
    "_play",
    "WorkerProcess._live",
    "Limiter._beat",
    "Sessions._beat",
    "UpstreamModel._probe_forever",
    "BatchRunner._run",
)
"""Tasks that are there without a request. Heartbeats end a beat after the last hold."""
UNREAD_SLACK = 64
ORPHAN_S = 0.5
"""An abort waits for the step under way, and for a thread to run."""
APPLIED_S = 5.0
"""Within this a change of a key or of a tenant's credit holds at every gateway: see `gateway.tenancy.authenticator`."""
GONE_S = 12.0
"""A hang-up is heard when what is under way has an answer: a session's turn, a hold, the journal, the engine's step."""


class Auditor:
    """Watches one run."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.reports: list[Report] = []
        self.granted_nanodollars = dict(CREDIT)
        self.redis_faulted = False
        self.has_crashed = False
        self.has_restarted = False
        self.engine_faulted = False
        self.revoked_s: dict[str, float] = {}
        self.granted_s = 0.0
        self.adapters_changed_s = 0.0
        self._machine = machine
        self._jumps = 0
        self._stalled_s = 0.0
        self._orphans: dict[str, float] = {}
        """Requests in an engine whose deltas have no reader, and since when."""

    @property
    def _unread_slack(self) -> int:
        """Maximum number of deltas of a choice after its engine was sent the pause: those of the steps in flight, and
        those on their way."""
        config = self.world.config
        on_their_way = 10 * config.worker_delay_us // config.step_us if config.workers else 0
        return UNREAD_SLACK * (1 + config.workers) + on_their_way

    def begin(self) -> None:
        self.world.loop.before_jump = self.at_jump
        self.world.loop.set_exception_handler(self._on_error)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback has raised."""
        if "handle" in context and context.get("exception") is not None:
            self._machine.failures.append(context["exception"])

    def redis_fault(self) -> None:
        self.redis_faulted = True

    def granted(self, nanodollars: int) -> None:
        self.granted_nanodollars["prepaid"] += nanodollars
        self.granted_s = self.world.clock.elapsed_s

    def adapter_changed(self) -> None:
        self.adapters_changed_s = self.world.clock.elapsed_s

    def crashed(self) -> None:
        self.has_crashed = True

    def restarted(self) -> None:
        self.has_restarted = True

    def revoked(self, tenant: str) -> None:
        self.revoked_s[tenant] = self.world.clock.elapsed_s

    def stalled(self, seconds: float) -> None:
        """The process stood still: nothing of it could end."""
        self._stalled_s += seconds
        self._orphans = {request: since_s + seconds for request, since_s in self._orphans.items()}

    def at_jump(self) -> None:
        """After all that happens at an instant."""
        if self._machine.failures:
            raise self._machine.failures[0]
        self._jumps += 1
        if self._jumps % 4:
            return
        self._check_concurrency()
        for gateway in self.world.gateways:
            if gateway.open:
                self._check_engine(gateway)
                self._check_streams(gateway)
                for upstream in gateway.services.upstreams:
                    upstream.load.check()
                if self._jumps % 128 == 0:
                    self._check_schedulers(gateway)

    def _check_concurrency(self) -> None:
        """No tenant has more requests in engines than it may have at once."""
        if self.redis_faulted or self.has_crashed or self.has_restarted:
            return
        for tenant, limits in LIMITS.items():
            if limits.concurrent is None:
                continue
            schedulers = [each for gateway in self.world.gateways for each in gateway.schedulers.values()]
            mine = [each.id for one in schedulers for each in one._requests if each.tenant == id_of(tenant)]
            calls = {each.partition("#")[0].rpartition("-")[0] for each in mine}
            assert len(calls) <= limits.concurrent, f"{tenant} has {len(calls)} requests at once: {sorted(calls)}"

    def _check_engine(self, gateway: Gateway) -> None:
        """An engine thread that waits for work has none, and every count of its queue is then 0."""
        slack_s = (
            WAIT_SLACK_S + self._stalled_s + 3 * max(device.longest_ns for device in gateway.devices.values()) / 1e9
        )
        for scheduler in gateway.schedulers.values() if self.world.config.adapter_slots else ():
            adapter_audit.check_waits(scheduler, self.world.config, self.world.clock.now_ns, slack_s)
        core = gateway.core
        if core is None or not core._wake._waiters or core._inbox:  # type: ignore[attr-defined]
            return
        for name, runtime in core._runtimes.items():
            assert not runtime.step_loop.has_work, f"the engine waits, and {name} has work"
            assert runtime.step_loop.pace.resting, f"the engine waits, and the next step of {name} is to pay for it"
            runtime.wait_predictor.check()
            depth = core.queue_depth(name)
            waits = core.reservations(name) or runtime.scheduler.adapters.waiting
            assert not depth or waits, f"an idle engine has a queue of {depth} for {name}"

    def _check_streams(self, gateway: Gateway) -> None:
        """Unread deltas are bounded, and a request without a reader is aborted soon."""
        now_s, read = self.world.clock.elapsed_s, set[str]()
        for dispatcher in gateway.engine._dispatchers._by_loop.values():
            read |= dispatcher._streams.keys()
            for streams in dispatcher._streams.values():
                most = streams._most + self._unread_slack * len(streams._choices)
                assert len(streams._ready) <= most, f"{len(streams._ready)} deltas lie unread"
        if gateway.core is None:
            return
        bound_s = ORPHAN_S + 3 * max(device.longest_ns for device in gateway.devices.values()) / 1e9
        here = {each for runtime in gateway.core._runtimes.values() for each in runtime.dispatcher.sinks}
        self._orphans = {each: self._orphans.get(each, now_s) for each in here - read}
        for request, since_s in self._orphans.items():
            assert now_s - since_s < bound_s, f"{request} is computed for {now_s - since_s:.1f} s without a reader"

    def _check_schedulers(self, gateway: Gateway) -> None:
        for scheduler in gateway.schedulers.values():
            scheduler.check()
            scheduler._cache.check(list(scheduler._requests))

    # At rest

    async def at_rest(self) -> None:
        """All clients have gone. Everything is released, usage and bills agree, and the next request is served."""
        for gateway in self.world.gateways:
            for device in gateway.devices.values():
                device.faults = Faults()
            if isinstance(gateway.engine, SeenEngine):
                gateway.engine.host.disarm()
        self.world.upstream.disarm()
        self.world.adapter_reads.mean_s = min(self.world.adapter_reads.mean_s, PROBE_READ_S)
        self.world.adapter_reads.failing = 0.0
        await self._until_quiet()
        self._check_turns()
        for gateway in self.world.gateways:
            await self._probe(gateway)
        await self._until_quiet()
        for gateway in self.world.gateways:
            upstream_audit.check_served(gateway.services.upstreams)
        self._check_reports()
        if self.world.lost_holds:
            await asyncio.sleep(HOLD_TTL_MS / 1000)
        for gateway in self.world.gateways:
            await self._check_counters(gateway)
        await asyncio.sleep(max(0.0, self.adapters_changed_s + APPLIED_S - self.world.clock.elapsed_s))
        adapter_audit.check_names(self.world)
        self._check_books()
        self._check_refusals()
        if not self.redis_faulted:
            await asyncio.sleep(max(0.0, self.granted_s + APPLIED_S - self.world.clock.elapsed_s))
            for gateway in self.world.gateways:
                await self._check_balance(gateway)

    def _check_turns(self) -> None:
        """No session is kept by a turn that is over, where nothing was lost on the way to the store."""
        if self.redis_faulted or self.has_crashed or self.has_restarted:
            return
        now_ms, owned = time.time_ns() // 1_000_000, []
        if self.world.config.redis:
            client = FakeRedis(server=self.world.redis.server)
            for key in client.scan_iter("*ctx:*"):
                turn = client.hmget(key, "owner", "owned_until") if client.type(key) == b"hash" else (None, None)
                owned += [key] if turn[0] and int(turn[1] or 0) > now_ms else []
        else:
            sessions = self.world.gateways[0].services.sessions._store._sessions
            owned = [key for key, session in sessions.items() if session.owned(now_ms)]
        assert not owned, f"turns that are over keep {owned}"

    async def _until_quiet(self) -> None:
        until = self.world.clock.elapsed_s + QUIET_S
        while left := self._left():
            assert self.world.clock.elapsed_s < until, f"not released: {left}"
            await asyncio.sleep(0.5)

    def _left(self) -> list[str]:
        """Resources that are still held, of any kind."""
        left: list[str] = []
        for gateway in self.world.gateways:
            left += [f"gateway {gateway.index}: {each}" for each in left_in(gateway)]
        left += upstream_audit.left_at(self.world.upstream)
        left += [f"task {name}" for name in self._tasks()]
        if self.world.config.topic:
            behind = len(self.world.topic.messages) - self.world.topic.committed
            left += [f"{behind} messages in the topic"] if behind else []
        return left

    def _tasks(self) -> list[str]:
        names = []
        for task in asyncio.all_tasks():
            name = getattr(task.get_coro(), "__qualname__", "?")
            if task is not asyncio.current_task() and not any(name.endswith(each) for each in BACKGROUND):
                names.append(f"{task.get_name()} ({name})")
        return sorted(names)

    async def _probe(self, gateway: Gateway) -> None:
        for model in gateway.services.engine.models:
            asked = [("probe", None), ("vip-probe", None)] if model == BASE else [("probe", None)]
            if gateway.services.engine.adapter_slots(model):
                asked += [("probe", name) for name in NAMES]
            for tenant, adapter in asked:
                began_s = self.world.clock.elapsed_s
                found: list[Report] = []
                call = Call(0, tenant, model=model, max_tokens=1, stream=False, gateway=gateway.index, adapter=adapter)
                await clients.perform(self.world, call, found)
                report = found[0]
                taken_s = self.world.clock.elapsed_s - began_s
                assert report.status == 200, (
                    f"a lone request to an idle gateway is answered {report.status}: {report.exchange.taken[:300]!r}"
                )
                assert taken_s < PROBE_S, f"a lone request to an idle gateway takes {taken_s:.1f} s"
                self.reports.append(report)

    def _check_reports(self) -> None:
        for report in self.reports:
            if report.crash is not None:
                raise AssertionError(f"the application raised for {report.call}") from report.crash
            check_answer(report, self.engine_faulted or worker_audit.may_fail(report))
            upstream_audit.check_status(self.world.upstream, report)
            self._check_hang_up(report)
            revoked_s = self.revoked_s.get(report.call.tenant)
            late = revoked_s is not None and report.began_s > revoked_s + APPLIED_S
            cancelled = report.status == 503 and report.call.cancelled_after_steps is not None
            assert not late or cancelled or report.status in (401, None) or report.call.endpoint == "read", (
                f"a revoked key is answered {report.status}: {report.call}"
            )

    def _check_hang_up(self, report: Report) -> None:
        """A client that hangs up is served no further: its request ends, after the current step and calls to stores."""
        gone_s, exchange = report.exchange.gone_s, report.exchange
        if gone_s is None or report.ended_s is None or exchange.broken_off:
            return
        taken_s = report.ended_s - (gone_s - self.world.clock.START_NS / 1e9)
        longest_s = max(device.longest_ns for device in report.gateway.devices.values()) / 1e9
        bound_s = GONE_S + 3 * longest_s
        assert taken_s < bound_s, f"a request runs for {taken_s:.1f} s after its client has gone: {report.call}"

    async def _check_counters(self, gateway: Gateway) -> None:
        """A tenant's limits as it sees them: nothing is held or over, and no request used more than it held."""
        if not self.redis_faulted:
            exceeded = gateway.services.limiter.counts()["exceeded"]
            assert not exceeded, f"{exceeded} requests used more than they held"
        for tenant in LIMITS.keys() | CREDIT.keys() | {LIMITED[0]}:
            for counter in await self._counters(gateway, tenant):
                where = f"{tenant}'s {counter['name']}"
                assert counter["held"] == 0, f"{counter['held']} of {where} is held without a request"
                if not self.redis_faulted:
                    assert counter["used"] <= counter["limit"], f"{where}: {counter['used']} of {counter['limit']}"

    async def _check_balance(self, gateway: Gateway) -> None:
        """The balance that a tenant with prepaid credit sees equals the one on its invoice, after kills and failing
        disks, too."""
        spent: Counter[str] = Counter()
        for event in self._journalled().values():
            spent[event.tenant_id] += event.cost_nanodollars
        for tenant in CREDIT:
            for counter in await self._counters(gateway, tenant):
                if counter["name"] == "credit_nanodollars":
                    told, is_spent = (
                        (counter["used"], counter["limit"]),
                        (spent[id_of(tenant)], self.granted_nanodollars[tenant]),
                    )
                    assert told == is_spent, f"{tenant} is shown {told} of its credit, and it is {is_spent}"

    async def _counters(self, gateway: Gateway, tenant: str) -> list[dict[str, Any]]:
        found: list[Report] = []
        await clients.perform(self.world, Call(0, tenant, "read", gateway=gateway.index, variant=0), found)
        if found[0].status == 401:
            return []
        assert found[0].status == 200, f"/v1/limits answers {found[0].status}"
        counters: list[dict[str, Any]] = found[0].body()["counters"]
        return counters

    def _check_books(self) -> None:
        events = {str(event_id): row for event_id, row in self.world.analytics.events().items()}
        journalled = self._journalled()
        assert set(events) == set(journalled), (
            f"{len(set(journalled) - set(events))} events of journals are not in the store, "
            f"{len(set(events) - set(journalled))} of the store in no journal"
        )
        by_request = Counter(row["request_id"] for row in events.values())
        twice = [request for request, count in by_request.items() if count > 1]
        assert not twice, f"requests with two events: {twice}"
        by_id = {row["request_id"]: row for row in events.values()}
        for report in self.reports:
            check_bill(report, by_id, disk_failed_at_stop=self.world.disk_failed_at_stop)
        billed = list(journalled.values())
        adapter_audit.check_answers(self.world, self.reports)
        worker_audit.check_answers(self.world, self.reports, billed, engine_faulted=self.engine_faulted)
        upstream_audit.check_answers(self.world.upstream, self.reports, billed)
        adapter_audit.check_events(self.world, billed)
        parts_were_lost = self.world.redis.lost_data and self.world.config.gateways > 1
        check_credit(billed, self.granted_nanodollars, parts_were_lost=parts_were_lost)
        if not (self.redis_faulted or self.has_crashed):
            check_limits(billed, tokens_survive=self.world.config.redis or not self.has_restarted)

    def _check_refusals(self) -> None:
        """Each refused request is in the store once. Nothing was dropped: no bound is as low as that."""
        for gateway in self.world.gateways:
            log = gateway.services.refusals
            log._counts.check()
            assert not log.dropped_total, f"{log.dropped_total} refusals were dropped"
        self.world.refusals.check(self.world.analytics.refusals())
        if self.has_crashed or self.world.disk_failed_at_stop:
            return  # a usage record that was on no disk is lost
        failed = Counter(
            event.tenant_id
            for event in self._journalled().values()
            if event.finish_reason in (Ending.ERROR, Ending.INTERRUPTED, Ending.CANCELLED)
        )
        self.world.refusals.check_metered(failed)

    def _journalled(self) -> dict[str, UsageEvent]:
        """The events of all journals as they are now; a process that was killed has left its to the next."""
        found: dict[str, UsageEvent] = {}
        for gateway in self.world.gateways:
            connection = sqlite3.connect(f"{gateway.settings.journal_path.as_uri()}?mode=ro", uri=True)
            try:
                rows = connection.execute("SELECT body FROM events").fetchall()
                left = connection.execute("SELECT request_id FROM open_requests").fetchall()
            finally:
                connection.close()
            assert not left, f"requests that are open in the journal for ever: {left}"
            for (body,) in rows:
                event = UsageEvent.from_json(body)
                assert str(event.event_id) not in found, "an event is in two journals"
                found[str(event.event_id)] = event
        return found

    def at_end(self) -> None:
        """The gateways have stopped in order."""
        if self._machine.failures:
            raise self._machine.failures[0]
        alive = list(self._machine.alive.values())
        assert not alive, f"threads outlive their process: {alive}"
        self.world.refusals.check(self.world.analytics.refusals())
        tasks = [task for task in asyncio.all_tasks(self.world.loop) if task is not asyncio.current_task()]
        assert not tasks, f"tasks outlive their process: {tasks}"
