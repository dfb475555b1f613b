"""Ownership of blocks: reserves of ranks, protected caches, and a tenant's share. One test for each promise."""

import pytest

from engine.memory import BlockPool, CapacityError
from engine.memory.reservation import Reservation


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


def make_pool(num_blocks: int, *reserved: int, tenant_blocks: int = 1000) -> BlockPool:
    pool = BlockPool(num_blocks)
    pool.reserve(reserved or (0,), tenant_blocks)
    return pool


def cache(pool: BlockPool, count: int, rank: int = 0, tenant: str = "") -> list[int]:
    """Free blocks with content, that a rank and a tenant have used; the first of the list is to be reused first."""
    blocks = pool.allocate(count, rank, tenant)
    for block in blocks:
        pool.publish(block, name(block))
    pool.release(blocks, rank)
    pool.check()
    return blocks


def evicted(pool: BlockPool, blocks: list[int]) -> list[int]:
    return [block for block in blocks if pool.hash_of(block) is None]


def test_what_is_unused_of_the_reserves_above_is_out_of_reach() -> None:
    reservation = Reservation((3, 2, 0))
    reservation.held = [1, 5, 0]
    assert [reservation.unused_above(rank) for rank in range(3)] == [0, 2, 2]
    assert [reservation.reserved_above(rank) for rank in range(3)] == [0, 3, 5]


def test_the_inequality() -> None:
    pool = make_pool(10, 3, 0)
    assert (pool.available_blocks(0), pool.available_blocks(1)) == (10, 7)
    pool.allocate(2, 0)
    assert (pool.available_blocks(0), pool.available_blocks(1)) == (8, 7)
    pool.allocate(7, 1)
    with pytest.raises(CapacityError, match="1 blocks requested, 0 available"):
        pool.allocate(1, 1)
    pool.allocate(1, 0)
    pool.check()


def test_what_is_missing_from_a_reserve_is_what_others_took_of_it() -> None:
    """Of (reserved, held) by rank and what is free: rank 1 took all of rank 0's reserve; rank 0 took of rank 1's, as it
    may; rank 2 took two of what is kept for both."""
    told = []
    for reserved, held, free in (((3, 0), [1, 9], 0), ((3, 2, 0), [5, 0, 4], 0), ((3, 2, 0), [0, 0, 5], 3)):
        reservation = Reservation(reserved)
        reservation.held = held
        told.append([reservation.missing(rank, free) for rank in range(len(reserved))])
    assert told == [[2, 0], [0, 0, 0], [0, 2, 0]]


def test_blocks_with_content_count_as_free() -> None:
    pool = make_pool(10, 3, 0)
    cache(pool, 7, rank=1)
    assert (pool.available_blocks(0), pool.available_blocks(1)) == (10, 7)


def test_a_shared_block_counts_for_the_lowest_that_holds_it() -> None:
    pool = make_pool(10, 3, 0)
    blocks = pool.allocate(2, 0)
    for block in blocks:
        pool.publish(block, name(block))
    assert pool.available_blocks(1, blocks) == 5  # of eight free ones, three are kept again once these are shared
    pool.acquire(blocks, 1)
    assert (pool.held_blocks(0), pool.held_blocks(1), pool.available_blocks(1)) == (0, 2, 5)
    pool.release(blocks, 0)
    assert (pool.held_blocks(0), pool.held_blocks(1), pool.available_blocks(1)) == (0, 2, 5)
    pool.acquire(blocks, 0)
    pool.release(blocks, 1)
    assert (pool.held_blocks(0), pool.held_blocks(1), pool.available_blocks(1)) == (2, 0, 7)
    pool.check()


def test_a_classs_cache_outlives_that_of_the_class_below_within_its_reserve() -> None:
    pool = make_pool(8, 3, 0)
    high = cache(pool, 3, rank=0)
    low = cache(pool, 5, rank=1)
    pool.allocate(5, 1)
    assert (evicted(pool, high), evicted(pool, low)) == ([], low)


def test_what_exceeds_the_reserve_ages_like_anyones() -> None:
    pool = make_pool(8, 3, 0)
    high = cache(pool, 5, rank=0)
    low = cache(pool, 3, rank=1)
    pool.allocate(2, 1)
    assert (evicted(pool, high), evicted(pool, low)) == (high[:2], [])


def test_a_reserve_in_use_protects_no_cache_beside() -> None:
    pool = make_pool(8, 3, 0)
    high = cache(pool, 2, rank=0)
    pool.allocate(3, 0)
    low = cache(pool, 3, rank=1)
    pool.allocate(2, 1)
    assert (evicted(pool, high), evicted(pool, low)) == (high, [])


def test_protected_blocks_go_when_nothing_else_is_left() -> None:
    pool = make_pool(4, 2, 0)
    high = cache(pool, 2, rank=0)
    pool.allocate(2, 1)
    pool.allocate(2, 0)
    assert evicted(pool, high) == high


def test_a_tenant_over_its_share_evicts_its_own() -> None:
    pool = make_pool(8, tenant_blocks=4)
    neighbour = cache(pool, 3, tenant="neighbour")
    flooder = cache(pool, 5, tenant="flooder")
    for _ in range(5):
        cache(pool, 1, tenant="flooder")
    assert evicted(pool, neighbour) == []
    assert pool.match([name(block) for block in neighbour]) == neighbour
    assert len(flooder) == 5


def test_a_tenant_alone_may_fill_the_pool() -> None:
    pool = make_pool(8, tenant_blocks=4)
    blocks = cache(pool, 8, tenant="alone")
    assert evicted(pool, blocks) == []


def test_below_its_share_a_tenant_evicts_the_longest_unused() -> None:
    pool = make_pool(8, tenant_blocks=4)
    neighbour = cache(pool, 5, tenant="neighbour")
    own = cache(pool, 3, tenant="own")
    pool.allocate(1, tenant="own")
    assert (evicted(pool, neighbour), evicted(pool, own)) == (neighbour[:1], [])
