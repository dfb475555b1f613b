"""Invariants of block tables, for `KVCacheManager.check`."""

from collections.abc import Iterable, Mapping, Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool
from engine.memory.step_blocks import Return
from engine.memory.window_groups import held_blocks
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


def check_fork(parent: Request, child: Request) -> None:
    """Assert that a choice can begin on the blocks of its parent's prompt."""
    assert not child.block_table, f"{child.id} is admitted twice"
    assert parent.computed >= child.prompt_tokens, f"{parent.id} has not computed the prompt of {child.id}"
    assert len(child.tokens) == child.prompt_tokens, f"{child.id} has tokens of its own already"
    assert _looks_alike(child, parent), f"{child.id} and {parent.id} differ in their prompt"
    assert child.salt == parent.salt, f"{child.id} and {parent.id} belong to different caches"
    assert child.rank == parent.rank, f"{child.id} and {parent.id} are of different classes"


def blocks_by_holder(requests: Sequence[Request], returns: Iterable[Return]) -> dict[int, list[int]]:
    """The blocks of each holder, returning ones included. Asserts that holders and shared prompts are right."""
    held: dict[int, list[int]] = {returning.holder: returning.blocks for returning in returns}
    for request in requests:
        shared = 0
        if request.shared is not None:
            shared = len(request.shared.blocks)
            held[request.shared.holder] = request.shared.blocks
            assert request.block_table[:shared] == request.shared.blocks, f"{request.id} has left a shared prompt"
            sharing = [other for other in requests if other.shared is request.shared]
            assert len(sharing) == request.shared.requests, "those that share a prompt are miscounted"
        if request.block_table:
            assert request.holder not in held, f"{request.id} has the number of another"
            held[request.holder] = held_blocks(request)[shared:]
    return held


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


def _looks_alike(child: Request, parent: Request) -> bool:
    """Whether both have the same prompt, judged by its last block and the known hashes. O(1), as the caller submits the
    same prompt for all choices of a call."""
    end = child.prompt_tokens
    known = min(len(child.block_hashes), len(parent.block_hashes), end // BLOCK_TOKENS)
    hashes_agree = not known or child.block_hashes[known - 1] == parent.block_hashes[known - 1]
    last = max(0, end - BLOCK_TOKENS)
    return hashes_agree and child.tokens[last:end] == parent.tokens[last:end] and parent.prompt_tokens == end
