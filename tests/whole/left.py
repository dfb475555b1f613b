"""Resources that a gateway at rest still holds: there must be none."""

from engine.memory.state_pool import StateUse
from engine.runtime.core import EngineCore
from tests.whole import adapter_audit, upstream_audit, worker_audit
from tests.whole.workers import SeenEngine
from tests.whole.world import Gateway


def left_in(gateway: Gateway) -> list[str]:
    """Resources that a gateway without requests still holds."""
    left = _left_in_engine(gateway.core) if gateway.core is not None else ["its engine has no process"]
    if isinstance(gateway.engine, SeenEngine):
        left += worker_audit.left_in(gateway.engine)
    services = gateway.services
    left += [each for model in services.upstreams for each in upstream_audit.left_in(model)]
    left += [
        f"{len(dispatcher._streams)} streams"
        for dispatcher in gateway.engine._dispatchers._by_loop.values()
        if dispatcher._streams
    ]
    counts = services.limiter.counts()
    left += [f"limiter: {counts[name]} {name}" for name in ("open", "unmerged", "breaker_open") if counts.get(name)]
    journal, relay, sessions = services.journal, services.relay, services.sessions
    if journal._under_way:
        left.append(f"the journal has {sorted(journal._under_way)} under way")
    if journal.trouble is not None:
        left.append(f"the journal: {journal.trouble}")
    if relay is not None and relay.backlog_events:
        left.append(f"{relay.backlog_events} events have not been delivered")
    if services.refusals.unstored_requests:
        left.append(f"{services.refusals.unstored_requests} refusals have not been stored")
    if sessions._open or sessions._waiting or sessions._releasing:
        left.append("turns of sessions")
    if services.key_watch.running:
        left.append(f"{services.key_watch.running} requests whose keys are watched")
    if gateway.tasks:
        left.append(f"{len(gateway.tasks)} requests")
    return left


def _left_in_engine(core: EngineCore) -> list[str]:
    left: list[str] = []
    for name, runtime in core._runtimes.items():
        scheduler = runtime.scheduler
        if runtime.step_loop.has_work or scheduler.waiting or scheduler.running:
            left.append(f"{name} has work")
        if scheduler._cache.free_blocks != scheduler._cache.num_blocks:
            left.append(f"{name} holds {scheduler._cache.num_blocks - scheduler._cache.free_blocks} blocks")
        if (states := scheduler._cache.states) is not None:
            taken = states.pool.count(StateUse.RUNNING) + states.pool.count(StateUse.PENDING)
            if taken:
                left.append(f"{name} holds {taken} state slots")
        if runtime.dispatcher.sinks:
            left.append(f"{name} has {len(runtime.dispatcher.sinks)} sinks")
        left += [f"{name} has {each}" for each in adapter_audit.held_in(scheduler)]
        if core.queue_depth(name):
            left.append(f"{name} has a queue of {core.queue_depth(name)}")
        if core.reservations(name):
            left.append(f"{name} has {core.reservations(name)} reservations")
    if core._inbox:
        left.append("the engine's inbox")
    return left
