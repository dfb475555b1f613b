"""Native sampling: the draws of the reference at every level of the processor, and what else reads logits."""

import ctypes
import math
from collections import Counter
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu.native import Level, NativeSampling
from kernels.cpu.native.library import load
from kernels.noise import noise_key
from kernels.ops import SamplingColumns
from tests.kernels.cpu.faces import ReadingFace
from tests.kernels.cpu.paged import levels, using, vector_levels

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

at_every_level = pytest.mark.parametrize("level", vector_levels(), ids=lambda level: level.name)

VOCABULARIES = [1, 2, 15, 16, 17, 100, 383, 384, 385, 1000, 5003, 8192, 8193, 20_000]
"""Around a vector, what is sorted, and a chunk."""

KINDS = ["random", "flat", "peaked", "tied", "few left", "equal", "far away", "one step apart"]


def native_sampling() -> ReadingFace:
    return ReadingFace(NativeSampling())


def logits_of(kind: str, rows: int, vocab_size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, vocab_size), generator=generator)
    match kind:
        case "flat":
            logits *= 0.01
        case "peaked":
            logits[:, torch.randint(0, vocab_size, (5,), generator=generator)] += torch.linspace(8, 12, 5)
        case "tied":
            logits = (logits * 2).round()
        case "few left":
            logits[torch.rand(logits.shape, generator=generator) < 0.95] = -math.inf
            logits[:, vocab_size // 2] = 0.5
        case "equal":
            logits = torch.full_like(logits, 3.25)
        case "far away":
            logits[:, ::3] = -1000.0
        case "one step apart":
            steps = torch.randint(0, 3, logits.shape, generator=generator)
            logits = (torch.full(logits.shape, 1.0).view(torch.int32) + steps.int()).view(torch.float32)
    return logits


def columns_of(rows: int, vocab_size: int, seed: int = 0, **changes: float) -> SamplingColumns:
    """The same for all rows, but for the keys."""
    columns = {"inverse_temperature": 1.0, "noise_scale": 1.0, "top_p": 1.0, "min_p": 0.0}
    top_k = int(changes.pop("top_k", vocab_size))
    return SamplingColumns(
        **{name: torch.full((rows,), value) for name, value in (columns | changes).items()},
        top_k=torch.full((rows,), top_k),
        keys=torch.tensor([noise_key(seed, row) for row in range(rows)]),
    )


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from(VOCABULARIES),
    scale=st.sampled_from([0.1, 1.0, 1.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.0, 2.0]),
    top_k=st.sampled_from([1, 2, 50, 700, 1 << 20, 1 << 20]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.95, 0.999, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    noise=st.sampled_from([1.0, 1.0, 1.0, 0.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_draws_are_the_references(
    kind: str,
    vocab_size: int,
    scale: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    noise: float,
    threads: int,
    seed: int,
) -> None:
    logits = logits_of(kind, 3, vocab_size, seed) * scale
    columns = columns_of(
        3,
        vocab_size,
        seed,
        inverse_temperature=1 / temperature if noise else 1.0,
        noise_scale=noise,
        top_k=min(top_k, vocab_size),
        top_p=top_p,
        min_p=min_p,
    )
    expected = reference.sample(logits, columns)
    for level in vector_levels():
        with using(level, threads):
            assert torch.equal(native_sampling().sample(logits.clone(), columns), expected), level.name


@settings(deadline=None, max_examples=50)
@given(
    kind=st.sampled_from(KINDS),
    first=st.integers(0, 40),
    step=st.integers(1, 7),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    top_k=st.sampled_from([3, 1 << 20]),
    seed=st.integers(0, 2**31),
)
def test_draws_among_some(kind: str, first: int, step: int, top_p: float, top_k: int, seed: int) -> None:
    some = torch.arange(first, 5003, step)
    logits = logits_of(kind, 2, len(some), seed)
    columns = columns_of(2, len(some), seed, top_p=top_p, top_k=min(top_k, len(some)))
    expected = reference.sample_among(logits, some, columns)
    for level in vector_levels():
        with using(level):
            assert torch.equal(native_sampling().sample_among(logits.clone(), some, columns), expected), level.name


@at_every_level
@pytest.mark.parametrize("changes", [{}, {"top_k": 50.0}, {"min_p": 0.01}])
def test_a_share_that_no_float32_holds_keeps_the_largest(level: Level, changes: dict[str, float]) -> None:
    for vocab_size in (5, 5003, 20_000):
        logits = logits_of("random", 4, vocab_size, 3)
        with using(level):
            drawn = native_sampling().sample(logits.clone(), columns_of(4, vocab_size, **({"top_p": 1e-60} | changes)))
        assert torch.equal(drawn, logits.argmax(dim=1))


@at_every_level
def test_a_row_draws_the_same_in_any_company(level: Level) -> None:
    """In a batch, alone, divided among threads or not."""
    vocab_size = 3 * 8192 + 5
    logits = torch.cat([logits_of(kind, 1, vocab_size, index) for index, kind in enumerate(KINDS)])
    columns = columns_of(len(logits), vocab_size, top_p=0.9)
    fields = ("inverse_temperature", "noise_scale", "top_k", "top_p", "min_p", "keys")
    with using(level, threads=1):
        together = native_sampling().sample(logits.clone(), columns)
    for threads in (1, 2, 3):
        with using(level, threads):
            assert torch.equal(native_sampling().sample(logits.clone(), columns), together)
            for row in range(len(logits)):
                one = SamplingColumns(**{name: getattr(columns, name)[row : row + 1] for name in fields})
                wide = torch.zeros((1, vocab_size + 3))
                wide[:, :vocab_size] = logits[row]
                assert native_sampling().sample(wide[:, :vocab_size], one).item() == together[row]


@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(49_152, "random"), (49_152, "flat"), (151_936, "peaked"), (151_936, "tied")]
)
def test_large_vocabularies(vocab_size: int, kind: str) -> None:
    logits = logits_of(kind, 2, vocab_size, 5) * 3
    for changes in ({"top_p": 0.95}, {"top_k": 40.0}, {"top_k": 2000.0, "top_p": 0.5}, {}):
        columns = columns_of(2, vocab_size, 1, **changes)
        expected = reference.sample(logits, columns)
        for level in vector_levels():
            with using(level):
                drawn = native_sampling().sample(logits.clone(), columns)
            assert torch.equal(drawn, expected), (level.name, changes)


@at_every_level
def test_the_smallest_id_wins_a_tie(level: Level) -> None:
    logits = torch.zeros((2, 5003))
    logits[:, [70, 71, 4000]] = 2.0
    with using(level):
        assert native_sampling().sample(logits, columns_of(2, 5003, noise_scale=0.0)).tolist() == [70, 70]
        # The noise is below the precision of such numbers: their sums with it are equal.
        drawn = native_sampling().sample(logits * 1e12, columns_of(2, 5003))
    assert drawn.tolist() == [70, 70]


@at_every_level
def test_rows_that_are_not_finite_draw_some_token(level: Level) -> None:
    for vocab_size in (5, 300, 5003):
        logits = torch.randn((5, vocab_size), generator=torch.Generator().manual_seed(1))
        logits[0, 3] = math.nan
        logits[1, 3] = math.inf
        logits[2] = math.nan
        logits[3] = -math.inf
        for changes in ({}, {"top_p": 0.9}, {"top_k": 4.0}, {"top_k": 4.0, "top_p": 0.5, "min_p": 0.1}):
            with using(level):
                columns = columns_of(5, vocab_size, **changes)
                drawn = native_sampling().sample(logits.clone(), columns)
            assert 0 <= int(drawn.min()) <= int(drawn.max()) < vocab_size
            assert (drawn[1], drawn[3]) == (3, 0)
            assert drawn[4] == reference.sample(logits, columns)[4]


@at_every_level
def test_noise_is_that_of_the_reference(level: Level) -> None:
    """Of two tokens the second is drawn where its logit is a little more than what noise it lacks, else the first."""
    keys = torch.tensor([noise_key(9, row) for row in range(4000)])
    noise = reference.gumbel_noise(keys, 2)
    columns = columns_of(4000, 2)
    columns.keys.copy_(keys)
    lead = (noise[:, 0] - noise[:, 1]).double()
    step = 2.0**-20
    for sign, expected in ((-1, 0), (1, 1)):
        logits = torch.zeros((4000, 2))
        logits[:, 1] = (lead + sign * step * (1 + noise.abs().amax(dim=1).double() / 4)).float()
        with using(level):
            assert (native_sampling().sample(logits, columns) == expected).all()


@at_every_level
def test_draws_are_distributed_as_the_softmax(level: Level) -> None:
    draws, probabilities = 20_000, torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    logits = probabilities.log().expand(draws, 5).contiguous()
    with using(level):
        counts = Counter(native_sampling().sample(logits, columns_of(draws, 5, seed=3)).tolist())
    expected = probabilities * draws
    deviation = sum((counts[token] - float(expected[token])) ** 2 / float(expected[token]) for token in range(5))
    assert deviation < 23.5, "chi-squared of four degrees of freedom, one in ten thousand"


@at_every_level
@settings(deadline=None, max_examples=60)
@given(vocab_size=st.sampled_from(VOCABULARIES), rows=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_masks(level: Level, vocab_size: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, vocab_size + 1), generator=generator)
    words = torch.randint(-(2**31), 2**31, (rows, math.ceil(vocab_size / 32)), generator=generator).int()
    words[torch.rand(words.shape, generator=generator) < 0.3] = 0
    words[torch.rand(words.shape, generator=generator) < 0.3] = -1
    expected = logits.clone()
    reference.mask_logits(expected[:, :vocab_size], words)
    with using(level):
        native_sampling().mask_logits(logits[:, :vocab_size], words)
    assert torch.equal(logits, expected), "the columns past the vocabulary are unchanged"


@at_every_level
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_finite_rows(level: Level, vocab_size: int) -> None:
    logits = torch.randn((6, vocab_size), generator=torch.Generator().manual_seed(2))
    logits[1, -1] = math.nan
    logits[2, vocab_size // 2] = math.inf
    logits[3] = -math.inf
    logits[4, :-1] = -math.inf
    logits[5, : vocab_size // 2] = -math.inf
    with using(level):
        assert torch.equal(native_sampling().finite_rows(logits), reference.finite_rows(logits))


@at_every_level
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_token_logprobs(level: Level, vocab_size: int, kind: str) -> None:
    logits = logits_of(kind, 5, vocab_size, 7)
    tokens = torch.randint(0, vocab_size, (5,), generator=torch.Generator().manual_seed(8))
    normalisers, logprobs, ranks = reference.token_logprobs(logits, tokens)
    with using(level):
        measured = native_sampling().token_logprobs(logits, tokens)
    torch.testing.assert_close(measured[0], normalisers, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(measured[1], logprobs, atol=4e-6, rtol=1e-6)
    assert torch.equal(measured[2], ranks)


@at_every_level
def test_logprobs_of_what_is_not_finite(level: Level) -> None:
    logits = torch.zeros((3, 40))
    logits[0, 7], logits[1], logits[2, 9] = math.nan, -math.inf, math.inf
    tokens = torch.tensor([0, 0, 0])
    expected = reference.token_logprobs(logits, tokens)
    with using(level):
        measured = native_sampling().token_logprobs(logits, tokens)
    for actual, wanted in zip(measured, expected, strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True)


def test_no_rows() -> None:
    ours, none = native_sampling(), torch.zeros((0, 40))
    nobody = columns_of(1, 40)
    nobody = SamplingColumns(**{field.name: getattr(nobody, field.name)[:0] for field in fields(nobody)})
    ours.mask_logits(none, torch.zeros((0, 2), dtype=torch.int32))
    assert ours.finite_rows(none).shape == ours.sample(none, nobody).shape == (0,)
    assert [each.shape for each in ours.token_logprobs(none, torch.zeros(0, dtype=torch.int64))] == [(0,)] * 3


def test_columns_of_another_kind_are_refused() -> None:
    columns = columns_of(1, 40)
    with pytest.raises(AssertionError, match=r"top_k of int32"):
        native_sampling().sample(torch.zeros((1, 40)), replace(columns, top_k=columns.top_k.int()))
    with pytest.raises(AssertionError, match="contiguous"):
        native_sampling().sample(torch.zeros((40, 1)).T.expand(1, 40)[:, ::2], columns)
    some = torch.arange(40, dtype=torch.int32)
    with pytest.raises(AssertionError, match=r"token ids of int32"):
        native_sampling().sample_among(torch.zeros((1, 40)), some, columns)
    with pytest.raises(AssertionError, match=r"tokens of int32"):
        native_sampling().token_logprobs(torch.zeros((1, 40)), some[:1])
    with pytest.raises(AssertionError, match="none of 40"):
        native_sampling().token_logprobs(torch.zeros((1, 40)), torch.tensor([40]))


def test_scratch_is_enough_for_every_row_at_once() -> None:
    library = load()
    assert library is not None
    with using(levels()[-1], threads=3):
        one = library.tp_sample_scratch_bytes(1, 5003)
        assert one % 64 == 0
        assert library.tp_sample_scratch_bytes(ctypes.c_int64(8), 5003) == 3 * one
