"""The name of a block's content: everything that its KV depends on, and nothing by coincidence."""

import struct

import pytest

from engine.config import BLOCK_TOKENS
from engine.memory.hashing import adapter_extra, block_hash, salt_extra

TOKENS = tuple(range(BLOCK_TOKENS))


def test_equal_content_has_an_equal_name() -> None:
    assert block_hash(None, TOKENS) == block_hash(None, list(TOKENS))
    assert len(block_hash(None, TOKENS)) == 32


def test_the_name_covers_parent_order_and_every_token() -> None:
    names = {block_hash(None, TOKENS), block_hash(block_hash(None, TOKENS), TOKENS), block_hash(None, TOKENS[::-1])}
    for position in range(BLOCK_TOKENS):
        changed = list(TOKENS)
        changed[position] += 1000
        names.add(block_hash(None, changed))
    assert len(names) == 3 + BLOCK_TOKENS


def test_token_ids_do_not_run_into_each_other() -> None:
    """As decimal text, 1 23 and 12 3 would be the same."""
    assert block_hash(None, (1, 23, *TOKENS[2:])) != block_hash(None, (12, 3, *TOKENS[2:]))


def test_a_salt_is_no_adapter_and_no_other_salt() -> None:
    """vLLM 44701: an adapter named like another tenant's salt must not open that tenant's cache."""
    name = "customer-7"
    extras = [
        (),
        (salt_extra(name.encode()),),
        (adapter_extra(name),),
        (adapter_extra(name), salt_extra(name.encode())),
        (adapter_extra(name + "salt"), salt_extra(b"")),
        (adapter_extra("a"), salt_extra(b"bc")),
        (adapter_extra("ab"), salt_extra(b"c")),
    ]
    assert len({block_hash(None, TOKENS, extra) for extra in extras}) == len(extras)


def test_the_first_block_separates_the_whole_chain() -> None:
    chains = []
    for salt in (b"tenant-a", b"tenant-b"):
        parent = block_hash(None, TOKENS, [salt_extra(salt)])
        chains.append({parent, block_hash(parent, TOKENS)})
    assert chains[0].isdisjoint(chains[1])


@pytest.mark.parametrize("tokens", [TOKENS[:-1], (*TOKENS, 1), (*TOKENS[:-1], -1), (*TOKENS[:-1], 2**32)])
def test_only_a_full_block_of_token_ids_has_a_name(tokens: tuple[int, ...]) -> None:
    with pytest.raises(struct.error):
        block_hash(None, tokens)
