"""An operator's actions in a run, and the faults of the program's surroundings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.adapters.errors import UnknownAdapter
from gateway.tenancy.database import open_database
from tests.support.writers import CreditWriter, TenantWriter
from tests.whole import adapters
from tests.whole.adapters import NAMES, OWNERS, TONE
from tests.whole.scenario import Fault
from tests.whole.tenants import PEPPER, id_of
from tests.whole.upstream_server import REFUSALS
from tests.whole.workers import SeenEngine
from tests.whole.world import World

if TYPE_CHECKING:
    from tests.whole.audit import Auditor


HANG_NS = 70_000_000_000
"""Beyond the engine's limit on a step."""


async def apply_fault(world: World, fault: Fault, auditor: "Auditor") -> None:
    """Have it happen, and end where it lasts."""
    gateway = world.gateways[fault.gateway % len(world.gateways)]
    lasts_s = fault.lasts_ms / 1000
    devices = list(gateway.devices.values())
    match fault.kind:
        case "redis-down":
            auditor.redis_fault()
            world.redis.down = True
            await asyncio.sleep(lasts_s)
            world.redis.down = False
        case "redis-slow":
            auditor.redis_fault()
            world.redis.late_s = 0.02 * fault.amount
            await asyncio.sleep(lasts_s)
            world.redis.late_s = 0.0
        case "redis-empty":
            auditor.redis_fault()
            world.redis.down = True
            await asyncio.sleep(min(lasts_s, 0.5))
            world.redis.empty()
            world.redis.down = False
        case "redis-full":
            auditor.redis_fault()
            world.redis.full = True
            await asyncio.sleep(lasts_s)
            world.redis.full = False
        case "disk-fails":
            world.disk.fails = True
            await asyncio.sleep(lasts_s)
            world.disk.fails = False
        case "sync-fails":
            world.disk.sync_fails = True
            await asyncio.sleep(lasts_s)
            world.disk.sync_fails = False
        case "disk-full":
            world.disk.full = True
            await asyncio.sleep(lasts_s)
            world.disk.full = False
        case "disk-slow":
            world.disk.late_s = 0.01 * fault.amount
            await asyncio.sleep(lasts_s)
            world.disk.late_s = 0.0
        case "topic-down":
            world.topic.down = True
            await asyncio.sleep(lasts_s)
            world.topic.down = False
        case "topic-repeats":
            world.topic.repeats += min(fault.amount, 3)
        case "store-down":
            world.analytics.away = True
            await asyncio.sleep(lasts_s)
            world.analytics.away = False
        case "loop-stalls":
            # This process has no core for a while: nothing of it moves, and all that is outside does.
            stall_ms = min(fault.lasts_ms, 700)
            world.clock.advance(stall_ms * 1_000_000)
            auditor.stalled(stall_ms / 1000)
        case "device-slow":
            for device in devices:
                device.speed.factor = 1.0 + fault.amount
            await asyncio.sleep(lasts_s)
            for device in devices:
                device.speed.factor = 1.0
        case "step-fails":
            auditor.engine_faulted = True
            devices[0].faults.fails = True
        case "step-short":
            auditor.engine_faulted = True  # where no smaller step is possible, the largest request ends
            devices[0].faults.short = True
        case "poison":
            pass
        case "grant":
            async with _writing(world) as database:
                await CreditWriter(database).add(
                    "prepaid", fault.amount * 10_000, "more", f"grant-{fault.at_ms}-{fault.lasts_ms}"
                )
            auditor.granted(fault.amount * 10_000)
        case "revoke":
            async with _writing(world) as database:
                writer = TenantWriter(database, PEPPER)
                await writer.revoke_key((await writer.list_keys("economy"))[0].public_id)
            auditor.revoked("economy")
        case "worker-dies":
            if isinstance(gateway.engine, SeenEngine) and gateway.open:
                gateway.engine.host.plan_start("", lasts_s)
                gateway.engine.host.arm(fault.upon)
        case "worker-hangs":
            if isinstance(gateway.engine, SeenEngine):
                devices[0].faults.hang_ns = HANG_NS
        case "worker-start-dies" | "worker-start-fails":
            if isinstance(gateway.engine, SeenEngine) and gateway.open:
                gateway.engine.host.plan_start("dies" if fault.kind == "worker-start-dies" else "fails", lasts_s)
        case "adapters-late":
            world.adapter_reads.factor = 1.0 + fault.amount
            await asyncio.sleep(lasts_s)
            world.adapter_reads.factor = 1.0
        case "adapters-fail":
            world.adapter_reads.fails = True
            await asyncio.sleep(lasts_s)
            world.adapter_reads.fails = False
        case "upstream-away" | "upstream-refuses" | "upstream-breaks" | "upstream-silent" | "upstream-slow":
            await _disturb_upstream(world, fault)
        case "adapter-deleted" | "adapter-weights" | "adapter-rollback":
            with suppress(UnknownAdapter):  # another change has just deleted it
                await _change_adapter(world, fault, auditor)
        case "restart":
            if gateway.open:
                auditor.restarted()
                await world.restart(fault.gateway % len(world.gateways))
        case "crash":
            if gateway.open:
                auditor.crashed()
                await world.crash(fault.gateway % len(world.gateways))


async def _disturb_upstream(world: World, fault: Fault) -> None:
    server, lasts_s = world.upstream, fault.lasts_ms / 1000
    world.upstream.is_faulted = True
    match fault.kind:
        case "upstream-away":
            server.away = True
            await asyncio.sleep(lasts_s)
            server.away = False
        case "upstream-refuses":
            server.refuses = REFUSALS[fault.amount % len(REFUSALS)]
            server.retry_after_s = (None, 0.5, 20.0)[fault.amount % 3]
            await asyncio.sleep(lasts_s)
            server.refuses, server.retry_after_s = 0, None
        case "upstream-breaks":
            server.breaks += 1 + fault.amount % 4
        case "upstream-silent":
            server.silent = True
            await asyncio.sleep(lasts_s)
            server.silent = False
        case _:
            server.factor = 1.0 + fault.amount
            await asyncio.sleep(lasts_s)
            server.factor = 1.0


async def _change_adapter(world: World, fault: Fault, auditor: "Auditor") -> None:
    """Delete an adapter and make another of the same name and files, or move requests between its versions."""
    tenant = OWNERS[fault.amount % (len(OWNERS) - 1)]  # not that of the auditor's own requests
    name = NAMES[fault.amount // len(OWNERS) % len(NAMES)] if fault.kind == "adapter-deleted" else TONE
    life = world.adapters.live(tenant, name)
    if life is None:
        return
    registry, tenant_id = world.adapters, id_of(tenant)
    async with _writing(world) as database:
        match fault.kind:
            case "adapter-deleted":
                await adapters.delete(database, tenant_id, name)
                registry.change(life, until_s=world.clock.elapsed_s)
            case "adapter-weights":
                split = {1: 100 - fault.amount, 2: fault.amount} if fault.amount % 2 else {1 + fault.amount % 4 // 2: 1}
                changed = await adapters.set_weights(database, tenant_id, name, split)
                registry.change(life, weights=(*life.weights, (world.clock.elapsed_s, changed.weights)))
            case _:
                changed = await adapters.rollback(database, tenant_id, name)
                registry.change(life, weights=(*life.weights, (world.clock.elapsed_s, changed.weights)))
    auditor.adapter_changed()
    if fault.kind == "adapter-deleted" and fault.amount % 2:
        await asyncio.sleep(fault.lasts_ms / 1000)
        async with _writing(world) as database:
            made = await adapters.create(
                database, tenant, tenant_id, name, life.digests, life.weights[-1][1], world.clock.elapsed_s
            )
        registry.lives.append(made)
        auditor.adapter_changed()


@asynccontextmanager
async def _writing(world: World) -> AsyncIterator[AsyncEngine]:
    """A connection of the operator's own, as a command has it."""
    async with world.database.writing():
        database = open_database(f"sqlite+aiosqlite:///{world.database_path}")
        try:
            yield database
        finally:
            await database.dispose()
