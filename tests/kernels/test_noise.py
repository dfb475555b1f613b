"""The noise of a draw depends on (seed, position, token) alone, and is Gumbel-distributed."""

import math

import numpy as np
import torch

from kernels.cpu.sampling import gumbel_noise as gumbel_noise_of
from kernels.noise import choice_seed, mixed_seeds, noise_key, noise_keys
from kernels.reference import gumbel_noise


def test_keys_differ_by_seed_and_position() -> None:
    keys = {noise_key(seed, position) for seed in (-(2**63), -1, 0, 1, 2**63 - 1) for position in range(500)}
    assert len(keys) == 2500
    assert all(0 <= word < 2**32 for key in keys for word in key)


def test_keys_of_many_are_those_of_each() -> None:
    pairs = [(seed, position) for seed in (-(2**63), -1, 0, 1, 2**63 - 1) for position in (0, 1, 77, 2**31)]
    seeds, positions = zip(*pairs, strict=True)
    assert noise_keys(mixed_seeds(seeds), positions).tolist() == [list(noise_key(*pair)) for pair in pairs]


def test_choices_have_seeds_of_their_own() -> None:
    assert choice_seed(7, 0) == 7
    assert len({choice_seed(7, index) for index in range(128)}) == 128


def test_backends_draw_the_same_noise() -> None:
    key = noise_key(123, 45)
    slow = gumbel_noise(torch.tensor([key]), 60_000)[0]
    fast = torch.from_numpy(gumbel_noise_of(np.arange(60_000, dtype=np.uint32), key))
    # Near u = 1 float32 has no finer steps; such tokens lose every draw.
    winners = slow > -2.0
    torch.testing.assert_close(fast[winners], slow[winners], atol=2e-5, rtol=2e-5)
    assert float(fast[~winners].max()) < -1.9


def test_noise_is_gumbel() -> None:
    noise = gumbel_noise(torch.tensor([noise_key(1, position) for position in range(20)]), 10_000).double()
    assert abs(float(noise.mean()) - 0.57722) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03
    below = [float((noise < x).double().mean()) - math.exp(-math.exp(-x)) for x in (-1.0, 0.0, 1.0, 3.0)]
    assert max(map(abs, below)) < 0.005


def test_neighbouring_keys_and_tokens_are_unrelated() -> None:
    noise = gumbel_noise(torch.tensor([noise_key(1, position) for position in range(50)]), 2_000)
    centred = noise - noise.mean()
    scale = float(centred.square().mean())
    assert abs(float((centred[1:] * centred[:-1]).mean())) / scale < 0.02
    assert abs(float((centred[:, 1:] * centred[:, :-1]).mean())) / scale < 0.02
