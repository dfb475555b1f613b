"""Sampling where there is no native library: the draws of the reference."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import sampling
from kernels.noise import noise_key
from kernels.ops import SamplingColumns

VOCAB = 3000


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    top_k=st.sampled_from([1, 2, 50, 1500, VOCAB]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_draws_are_the_references(
    seed: int, scale: float, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.randn((4, VOCAB), generator=torch.Generator().manual_seed(seed)) * scale
    columns = SamplingColumns(
        inverse_temperature=torch.tensor([1 / temperature, 1 / temperature, 1.0, 1.0]),
        noise_scale=torch.tensor([1.0, 1.0, 0.0, 1.0]),
        top_k=torch.tensor([top_k, VOCAB, VOCAB, VOCAB]),
        top_p=torch.tensor([top_p, 1.0, 1.0, top_p]),
        min_p=torch.tensor([min_p, 0.0, 0.0, 0.0]),
        keys=torch.tensor([noise_key(seed, row) for row in range(4)]),
    )
    assert torch.equal(sampling.sample(logits.clone(), columns), reference.sample(logits, columns))
    some = torch.arange(seed % 3, VOCAB, 3)
    drawn = sampling.sample_among(logits[:, some], some, columns)
    assert torch.equal(drawn, reference.sample_among(logits[:, some], some, columns))


def test_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((3, 45), generator=generator)
    words = torch.randint(-(2**31), 2**31, (3, 2), generator=generator).int()
    expected = logits.clone()
    reference.mask_logits(expected, words)
    sampling.mask_logits(logits, words)
    assert torch.equal(logits, expected)
