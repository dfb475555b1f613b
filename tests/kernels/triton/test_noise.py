"""The device draws the bits that everything else draws, and loses none of the luckiest tokens' noise."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import reference
from kernels.noise import noise_key
from kernels.triton.noise import gumbel_noise, gumbel_of_hash
from kernels.triton.noise import noise_key as device_noise_key
from tests.support.kernel_tensors import DEVICE


@triton.jit
def keys_kernel(seeds, positions, keys, COUNT: tl.constexpr):
    draw = tl.arange(0, COUNT)
    first_word, second_word = device_noise_key(tl.load(seeds + draw), tl.load(positions + draw))
    tl.store(keys + 2 * draw, first_word.to(tl.int64))
    tl.store(keys + 2 * draw + 1, second_word.to(tl.int64))


@triton.jit
def noise_kernel(key, noise, first, COUNT: tl.constexpr):
    token = tl.arange(0, COUNT)
    words = tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32)
    tl.store(noise + token, gumbel_noise(first + token, words[0], words[1]))


@triton.jit
def hashes_kernel(hashes, noise, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(noise + index, gumbel_of_hash(tl.load(hashes + index).to(tl.uint32)))


def test_keys() -> None:
    seeds = [0, 1, -1, -(2**63), 2**63 - 1, 123_456_789, 7, 7]
    positions = [0, 1, 2, 3, 131_072, 2**40, 8, 9]
    keys = torch.empty((8, 2), dtype=torch.int64, device=DEVICE)
    keys_kernel[(1,)](torch.tensor(seeds, device=DEVICE), torch.tensor(positions, device=DEVICE), keys, COUNT=8)
    assert [tuple(key) for key in keys.tolist()] == list(map(noise_key, seeds, positions))


@pytest.mark.parametrize("first", [0, 262_144 - 4096])
def test_noise_of_tokens(first: int) -> None:
    key = torch.tensor(noise_key(2**62, first), device=DEVICE)
    noise = torch.empty(4096, device=DEVICE)
    noise_kernel[(1,)](key, noise, first, COUNT=4096)
    expected = reference.gumbel_noise(key[None], first + 4096)[0, first:]
    # A wrong bit of a hash would change its noise beyond recognition.
    torch.testing.assert_close(noise, expected, atol=1e-6, rtol=1e-6)


def test_noise_is_as_fine_at_both_ends_as_in_the_middle() -> None:
    ends = [0, 1, 2, 3, 127, 128, 1000, 2**20, 2**24 + 1, 2**30 - 1, 2**30, 2**31 - 1]
    hashes = torch.tensor([*ends, *(2**32 - 1 - end for end in ends), 2**31 + 12_345, 5, 6, 7, 8, 9, 10, 11])
    noise = torch.empty(32, device=DEVICE)
    hashes_kernel[(1,)](hashes.to(DEVICE), noise, COUNT=32)
    uniform = (hashes.double() + 0.5) * 2.0**-32
    expected = -torch.log(-torch.log1p(-uniform))
    torch.testing.assert_close(noise.cpu().double(), expected, atol=5e-7, rtol=3e-7)
