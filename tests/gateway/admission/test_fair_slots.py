"""Slots are lent tenant by tenant, and none is lost."""

import asyncio
import random

from gateway.admission.fair_slots import FairSlots


async def test_a_tenants_burst_is_one_turn_of_the_others() -> None:
    slots = FairSlots(1)
    served: list[str] = []

    async def call(tenant: str) -> None:
        async with slots.slot(tenant):
            served.append(tenant)
            await asyncio.sleep(0)

    async with slots.slot("loud"):
        calls = [asyncio.create_task(call(tenant)) for tenant in ["loud"] * 50 + ["a", "b", "a"]]
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert served[:7] == ["loud", "a", "b", "loud", "a", "loud", "loud"]
    assert served.count("loud") == 50


async def test_no_slot_is_lost_to_those_who_give_up() -> None:
    chance = random.Random(3)
    slots = FairSlots(3)
    inside = most = 0

    async def call(tenant: str) -> None:
        nonlocal inside, most
        async with slots.slot(tenant):
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1

    for _ in range(50):
        calls = [asyncio.create_task(call(chance.choice("abc"))) for _ in range(20)]
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)
            chance.choice(calls).cancel()
        await asyncio.wait(calls)
    assert (most, inside, slots.waiting) == (3, 0, 0)
    async with slots.slot("a"), slots.slot("a"), slots.slot("b"):
        pass


async def test_those_who_wait_can_be_turned_away() -> None:
    slots = FairSlots(1)

    async def call() -> None:
        async with slots.slot("a"):
            pass

    async with slots.slot("a"):
        waiting = [asyncio.create_task(call()) for _ in range(3)]
        await asyncio.sleep(0)
        slots.turn_away(lambda: ConnectionError("away"))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionError] * 3
    async with slots.slot("b"):
        pass
