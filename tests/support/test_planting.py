"""Plants break a function while they are planted, and name themselves where nothing is left to break."""

import pytest

from engine.memory import hashing
from tests.support.planting import NothingToBreak, Plant, always, keep_operand, plants_in, replace

PLANTED, UNMATCHED, OPERAND = plants_in(
    {
        "engine.memory.hashing": [
            Plant("the salt is empty", "salt_extra", replace("salt", "b''")),
            Plant("the hash is always the root", "block_hash", always("parent is None or tokens is None")),
            Plant("the parent is left out", "block_hash", keep_operand("parent or _ROOT", 1)),
        ]
    }
)


def test_a_plant_breaks_its_function_until_it_is_removed() -> None:
    original, tokens = hashing.block_hash, range(16)
    with OPERAND.planted():
        assert hashing.block_hash(b"p" * 32, tokens) == original(None, tokens)
    assert hashing.block_hash is original
    with PLANTED.planted():
        assert hashing.salt_extra(b"salt").value == b""


def test_a_plant_that_matches_nothing_fails_by_its_name() -> None:
    with pytest.raises(NothingToBreak, match=r"the hash is always the root.*engine\.memory\.hashing:block_hash"):
        UNMATCHED.planted().__enter__()
