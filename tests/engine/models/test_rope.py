"""Rope factors, position by position. What they do to logits is compared in `tests/engine/execution/test_golden.py`."""

import math

import numpy as np
import pytest

from engine.models.config import RopeConfig
from engine.models.rope import frequencies, rope_table
from kernels.arrays import FLOAT32

KINDS = (
    RopeConfig(theta=5e5),
    RopeConfig(rotary_dim=8),
    RopeConfig(kind="linear", factor=4.0, original_max_position=512),
    RopeConfig(kind="llama3", factor=8.0, original_max_position=512),
    RopeConfig(kind="yarn", factor=4.0, original_max_position=512),
    RopeConfig(kind="dynamic", factor=4.0, original_max_position=512),
)


@pytest.mark.parametrize("rope", KINDS, ids=lambda rope: rope.kind)
def test_a_longer_window_begins_as_a_shorter_one(rope: RopeConfig) -> None:
    long, short = rope_table(rope, 16, 2500), rope_table(rope, 16, 1300)
    assert long.cos.shape == long.sin.shape == (2500, (rope.rotary_dim or 16) // 2)
    assert long.cos.dtype == long.sin.dtype == FLOAT32
    assert np.array_equal(long.cos[:1300], short.cos)
    assert np.array_equal(long.sin[:1300], short.sin)


@pytest.mark.parametrize("position", [0, 1, 1023, 1024, 2499])
def test_factors_are_those_of_the_angle(position: int) -> None:
    rope = KINDS[0]
    table = rope_table(rope, 16, 2500)
    for pair, frequency in enumerate(frequencies(rope, 16)):
        angle = float(np.float32(position) * frequency)
        assert table.cos[position, pair] == pytest.approx(math.cos(angle), abs=2**-24)
        assert table.sin[position, pair] == pytest.approx(math.sin(angle), abs=2**-24)
