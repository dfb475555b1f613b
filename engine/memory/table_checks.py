"""Invariants of block tables, for `KVCacheManager.check`."""

from collections.abc import Mapping, Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool
from engine.request import Request


def check_table(pool: BlockPool, request: Request) -> None:
    """Assert that a request's table holds the KV of its tokens, and that it writes to no other request's block."""
    table, full = request.block_table, request.computed // BLOCK_TOKENS
    assert len(set(table)) == len(table), f"{request.id} holds a block twice"
    reached = max(request.computed, request.scheduled)
    assert reached <= len(table) * BLOCK_TOKENS, f"{request.id} has computed KV without a block"
    assert request.computed <= len(request.tokens), f"{request.id} has computed more than its tokens"
    assert len(request.block_hashes) <= len(request.tokens) // BLOCK_TOKENS, f"{request.id} hashed ahead"
    for block in table[full:]:
        assert pool.references(block) == 1, f"{request.id} would write to shared block {block}"
        assert pool.hash_of(block) is None, f"{request.id} would write to cached block {block}"
    for block, content in zip(table[:full], request.block_hashes, strict=False):
        assert pool.hash_of(block) in (None, content), f"{request.id} reads another's block {block}"


def check_holders(pool: BlockPool, held: Mapping[int, Sequence[int]]) -> None:
    """Assert that each block has the references of those that hold it. `held`: the blocks of each holder."""
    holders: list[list[int]] = [[] for _ in range(pool.num_blocks)]
    for holder, blocks in held.items():
        for block in blocks:
            holders[block].append(holder)
    for block, numbers in enumerate(holders):
        references = pool.references(block)
        assert references == len(numbers), f"block {block} has {references} references, {len(numbers)} hold it"
    for holder, blocks in held.items():
        alone, counted = sum(holders[block] == [holder] for block in blocks), pool.alone.get(holder, 0)
        assert alone == counted, f"{alone} blocks are held alone, {counted} counted"
