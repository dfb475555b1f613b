"""The pool alone, one test for each thing it promises."""

import pytest

from engine.memory import BlockPool, CapacityError


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


def publish(pool: BlockPool, blocks: list[int]) -> list[bytes]:
    for block in blocks:
        pool.publish(block, name(block))
    return [name(block) for block in blocks]


def test_all_blocks_can_be_allocated_once() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate(2) + pool.allocate(3)) == list(range(5))
    assert pool.free_blocks == 0
    pool.check()


def test_a_pool_of_one_block_works() -> None:
    pool = BlockPool(1)
    for _ in range(3):
        pool.release(pool.allocate(1))
        pool.check()
    assert pool.free_blocks == 1


def test_a_pool_has_at_least_one_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_allocating_too_many_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(CapacityError, match="3 blocks requested, 2 available"):
        pool.allocate(3)
    assert pool.free_blocks == 2
    pool.check()


def test_allocating_nothing_is_fine_in_a_full_pool() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    assert pool.allocate(0) == []
    pool.check()


def test_a_block_is_free_when_its_last_reference_goes() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.acquire(blocks)
    pool.release(blocks)
    assert (pool.references(blocks[0]), pool.free_blocks) == (1, 1)
    pool.release(blocks)
    assert (pool.references(blocks[0]), pool.free_blocks) == (0, 2)
    pool.check()


def test_a_double_free_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released but free"):
        pool.release(blocks)


def test_match_finds_the_leading_hits_only() -> None:
    pool = BlockPool(4)
    first, second, third = publish(pool, pool.allocate(3))
    assert pool.match([first, second, third]) == [0, 1, 2]
    assert pool.match([first, name(99), third]) == [0]
    assert pool.match([name(99), first]) == []
    assert pool.match([]) == []


def test_a_free_block_stays_cached_until_it_is_reused() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    hashes = publish(pool, blocks)
    pool.release(blocks)
    assert pool.match(hashes) == blocks
    pool.allocate(2)
    assert pool.match(hashes) == []
    assert pool.cached_blocks == 0
    pool.check()


def test_blocks_without_content_are_reused_first_then_the_longest_unused() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    publish(pool, blocks[:3])
    pool.release([1])
    pool.release([0])
    pool.release([3])
    pool.release([2])
    assert pool.allocate(4) == [3, 1, 0, 2]


def test_the_tail_of_a_sequence_is_reused_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    publish(pool, blocks)
    pool.release(reversed(blocks))
    assert pool.allocate(1) == blocks[-1:]


@pytest.mark.parametrize("hit", [0, 1, 2])
def test_a_hit_leaves_the_free_list_from_anywhere(hit: int) -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    hashes = publish(pool, blocks)
    pool.release(blocks)
    pool.acquire([hit])
    pool.check()
    assert pool.free_blocks == 2
    assert pool.allocate(2) == [block for block in blocks if block != hit]
    assert pool.match(hashes[hit : hit + 1]) == [hit]


def test_equal_content_is_published_once() -> None:
    pool = BlockPool(2)
    one, other = pool.allocate(2)
    pool.publish(one, name(7))
    pool.publish(other, name(7))
    assert pool.match([name(7)]) == [one]
    assert pool.hash_of(other) is None
    pool.check()
    pool.release([one])
    pool.allocate(1)
    assert pool.match([name(7)]) == []


def test_a_free_block_is_not_published() -> None:
    with pytest.raises(AssertionError, match="published but free"):
        BlockPool(1).publish(0, name(0))


def test_a_forgotten_block_is_not_found_and_comes_first_when_free() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    hashes = publish(pool, blocks)
    pool.forget([1])
    assert pool.match([hashes[1]]) == []
    pool.release(blocks)
    pool.check()
    assert pool.allocate(1) == [1]


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda pool: pool._references.__setitem__(2, 0), "both free and referenced, or neither"),
        (lambda pool: pool._references.__setitem__(0, 1), "both free and referenced, or neither"),
        (lambda pool: pool._references.__setitem__(2, -1), "negative"),
        (lambda pool: setattr(pool, "_free_blocks", 3), "counted"),
        (lambda pool: pool._lists.empty.append(1), "counted"),
        (lambda pool: pool._alone.clear(), "holds alone is miscounted"),
        (lambda pool: pool._top_held.__setitem__(0, 1), "no higher class holds"),
        (lambda pool: pool._hash_of.__setitem__(2, None), "disagree"),
        (lambda pool: pool._block_of.__setitem__(name(9), 3), "disagree"),
    ],
)
def test_check_finds_damage(damage, finding: str) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(4)
    pool.release(pool.allocate(4))
    pool.allocate(2)  # the blocks 3 and 2; 1 and 0 stay free
    publish(pool, [2])
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=finding):
        pool.check()
