"""Ops around a forward pass on the processor equal the reference, in every implementation."""

import math
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu import native
from kernels.cpu.native_ops import NativeOps
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.cpu.torch_host import TorchHost
from kernels.exchange import tensor_of
from kernels.layout import BLOCK_TOKENS
from kernels.noise import noise_key
from kernels.ops import LogitEdits, Penalties, SamplingColumns
from kernels.reference_int8 import from_int8, scales_of, to_int8
from tests.kernels.cpu.faces import HostFace

VOCAB = 3000
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def torch_ops(dtype: torch.dtype = torch.float32) -> CpuOps:
    return CpuOps(CpuProfile(dtype, threads=2, products="plain", min_rows=1, probe_us={}))


def native_ops(*, int8_kv: bool = False) -> NativeOps:
    if native.level() is None:
        pytest.skip("the native library is not built")
    return NativeOps(2, int8_kv=int8_kv)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    yield
    if native.level() is not None:
        native.start(1)


@pytest.fixture(scope="module", params=["native", "torch", "torch beside the library"])
def host(request: pytest.FixtureRequest) -> HostFace:
    if request.param == "native":
        return HostFace(native_ops())
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "torch":
            patched.setattr(native, "level", lambda: None)
        return HostFace(TorchHost(torch_ops()))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def apart(logits: Tensor) -> Tensor:
    """The same logits, whose rows lie among others."""
    wide = torch.full((2 * logits.shape[0], logits.shape[1] + 3), 7.0)[::2, 1:-2]
    return wide.copy_(logits)


def columns(rows: int, **changes: list[float] | list[int] | list[list[int]]) -> SamplingColumns:
    base = {
        "inverse_temperature": torch.ones(rows),
        "noise_scale": torch.ones(rows),
        "top_k": torch.full((rows,), VOCAB),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "keys": torch.tensor([[row * 7919 + 1, row * 104729 + 5] for row in range(rows)]),
    }
    return SamplingColumns(**(base | {name: torch.tensor(values) for name, values in changes.items()}))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    top_k=st.sampled_from([1, 2, 50, 1500, VOCAB]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_sampled_tokens(
    host: HostFace, seed: int, scale: float, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = random(4, VOCAB, seed=seed) * scale
    chosen = columns(
        4,
        inverse_temperature=[1 / temperature, 1 / temperature, 1.0, 1.0],
        noise_scale=[1.0, 1.0, 0.0, 1.0],
        top_k=[top_k, VOCAB, VOCAB, VOCAB],
        top_p=[top_p, 1.0, 1.0, top_p],
        min_p=[min_p, 0.0, 0.0, 0.0],
    )
    assert torch.equal(host.sample(apart(logits), chosen), reference.sample(logits, chosen))
    some = torch.arange(seed % 3, VOCAB, 3)
    among = reference.sample_among(logits[:, some], some, chosen)
    assert torch.equal(host.sample_among(apart(logits[:, some]), some, chosen), among)


def test_sampling_among_tokens_is_sampling_where_all_others_are_impossible() -> None:
    logits = random(64, VOCAB, seed=3)
    some = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:300].sort().values
    chosen = columns(64, keys=[[key, key * key] for key in range(64)])
    alone = torch.full_like(logits, -math.inf)
    alone[:, some] = logits[:, some]
    expected = reference.sample(alone, chosen)
    assert torch.equal(reference.sample_among(logits[:, some], some, chosen), expected)
    assert len(set(expected.tolist())) > 20


def test_equal_logits_are_kept_together(host: HostFace) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :3] = 5.0
    draws = {int(host.sample(logits.clone(), columns(1, top_k=[2], keys=[[key, key]]))[0]) for key in range(200)}
    assert draws == {0, 1, 2}


def test_unluckiest_noise_does_not_lose_the_only_candidate(host: HostFace) -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 17] = 0.0
    assert int(host.sample(logits, columns(1))[0]) == 17


def assert_draws_follow_the_softmax(sample: Callable[[Tensor, SamplingColumns], Tensor]) -> None:
    """Total variation to softmax(logits / T) stays within what this many draws allow."""
    draws, vocab, temperature = 8000, 12, 0.7
    logits = random(1, vocab, seed=9)
    chosen = SamplingColumns(
        inverse_temperature=torch.full((draws,), 1 / temperature),
        noise_scale=torch.ones(draws),
        top_k=torch.full((draws,), vocab),
        top_p=torch.ones(draws),
        min_p=torch.zeros(draws),
        keys=torch.randint(0, 2**32, (draws, 2), generator=torch.Generator().manual_seed(4)),
    )
    tokens = sample(logits.repeat(draws, 1), chosen)
    observed = torch.bincount(tokens, minlength=vocab) / draws
    expected = (logits[0] / temperature).softmax(dim=-1)
    assert float((observed - expected).abs().sum()) / 2 < 2.5 * math.sqrt(vocab / draws) / 2


def test_draws_follow_the_softmax(host: HostFace) -> None:
    assert_draws_follow_the_softmax(host.sample)


def test_draws_of_the_reference_follow_the_softmax() -> None:
    assert_draws_follow_the_softmax(reference.sample)


def kept_in_vllms_order(
    logits: npt.NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float
) -> npt.NDArray[np.float64]:
    """Probabilities [V] in float64, by vLLM V1's order: temperature, min-p, top-k, top-p."""
    odds = np.exp((logits - logits.max()) / temperature)
    odds[odds < min_p] = 0
    odds[np.argsort(-odds)[top_k:]] = 0
    odds /= odds.sum()
    order = np.argsort(-odds)
    before = np.concatenate([[0], odds[order].cumsum()[:-1]])
    odds[order[before >= top_p]] = 0
    probabilities: npt.NDArray[np.float64] = odds / odds.sum()
    return probabilities


def assert_draws_follow_vllms_order(
    sample: Callable[[Tensor, SamplingColumns], Tensor], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Chi-square, at five standard deviations, and nothing that vLLM would not draw."""
    draws, vocab = 10_000, 500
    logits = np.random.default_rng(5).normal(0, 2.5, vocab)
    expected = draws * kept_in_vllms_order(logits, temperature, top_k, top_p, min_p)
    columns = SamplingColumns(
        inverse_temperature=torch.full((draws,), 1 / temperature),
        noise_scale=torch.ones(draws),
        top_k=torch.full((draws,), top_k),
        top_p=torch.full((draws,), top_p),
        min_p=torch.full((draws,), min_p),
        keys=torch.tensor([noise_key(3, position) for position in range(draws)]),
    )
    tokens = sample(torch.from_numpy(logits).float().expand(draws, vocab).clone(), columns)
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    kept = expected > 0
    assert counts[~kept].sum() == 0, "a token that is cut off was drawn"
    freedom = kept.sum() - 1
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom) + 1


VLLMS_ORDER = pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(2.0, 500, 0.5, 0.1), (1.2, 50, 0.8, 0.02), (1.0, 3, 0.9, 0.001), (1.5, 500, 1.0, 0.05), (1.0, 20, 0.6, 0.2)],
)


@VLLMS_ORDER
def test_top_p_applies_after_min_p(host: HostFace, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    assert_draws_follow_vllms_order(host.sample, temperature, top_k, top_p, min_p)


@VLLMS_ORDER
def test_the_references_top_p_applies_after_min_p(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    assert_draws_follow_vllms_order(reference.sample, temperature, top_k, top_p, min_p)


def edits_of(entries: list[tuple[tuple[int, int], float]]) -> LogitEdits:
    return LogitEdits(
        rows=torch.tensor([row for (row, _), _ in entries], dtype=torch.int64),
        tokens=torch.tensor([token for (_, token), _ in entries], dtype=torch.int64),
        values=torch.tensor([value for _, value in entries], dtype=torch.float32),
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_edits(host: HostFace, data: st.DataObject, seed: int) -> None:
    """In quarters, which float32 adds in any order without rounding."""
    rows, vocab = 3, 7
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, vocab - 1))
    quarters = st.integers(-20, 20).map(lambda number: number / 4)
    added = data.draw(st.lists(st.tuples(places, st.one_of(quarters, st.just(-math.inf)))))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-40, 41, (rows, vocab), generator=generator) / 4
    logits[torch.rand(rows, vocab, generator=generator) < 0.1] = -math.inf
    expected, edited = logits.clone(), apart(logits)
    for (row, token), value in added:
        expected[row, token] += value
    host.edit_logits(edited, edits_of(added))
    assert torch.equal(edited, expected)


def test_edits_of_nothing(host: HostFace) -> None:
    logits = random(2, 6)
    expected = logits.clone()
    host.edit_logits(logits, edits_of([]))
    assert torch.equal(logits, expected)
    host.edit_logits(torch.zeros(0, 6), edits_of([]))


@st.composite
def any_penalties(draw: st.DrawFn, vocab: int) -> Penalties:
    """Of some rows over some lines; drafts of tokens that are in the line and of others."""
    lines, rows = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    numbers = Random(draw(st.integers(0, 2**32)))
    orders = [numbers.sample(range(vocab), vocab) for _ in range(lines)]
    drafted = (
        {(numbers.randrange(rows), numbers.randrange(vocab)) for _ in range(draw(st.integers(0, 6)))} if rows else ()
    )
    drafts = sorted(drafted)

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor([numbers.choice(values) for _ in range(rows)], dtype=torch.float32)

    return Penalties(
        tokens=torch.tensor(orders, dtype=torch.int32),
        times=torch.tensor([[numbers.choice((0, 1, 2, 77)) for _ in order] for order in orders], dtype=torch.int32),
        lines=torch.tensor([numbers.randrange(lines) for _ in range(rows)], dtype=torch.int64),
        lengths=torch.tensor([numbers.choice((0, 1, vocab // 2, vocab)) for _ in range(rows)], dtype=torch.int64),
        repetition=column([1.0, 1.1, 0.7, 3.0]),
        presence=column([0.0, 0.3, -1.7]),
        frequency=column([0.0, 0.1, -0.7]),
        draft_rows=torch.tensor([row for row, _ in drafts], dtype=torch.int64),
        draft_tokens=torch.tensor([token for _, token in drafts], dtype=torch.int64),
        draft_times=torch.tensor([numbers.randint(1, 5) for _ in drafts], dtype=torch.int32),
    )


def logits_to_penalise(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, columns), generator=generator) * 5
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -math.inf
    return logits


@settings(max_examples=100, deadline=None)
@given(
    penalties=any_penalties(23), seed=st.integers(0, 2**31), only=st.none() | st.sets(st.integers(0, 22), min_size=1)
)
def test_penalties_equal_the_reference(host: HostFace, penalties: Penalties, seed: int, only: set[int] | None) -> None:
    token_columns = None
    if only is not None:
        token_columns = torch.full((23,), -1, dtype=torch.int32)
        token_columns[sorted(only)] = torch.arange(len(only), dtype=torch.int32)
    logits = logits_to_penalise(len(penalties.lines), 23 if only is None else len(only), seed)
    expected, penalised = logits.clone(), apart(logits)
    reference.penalise_listed(expected, penalties, token_columns)
    host.penalise(penalised, penalties, token_columns)
    assert torch.equal(penalised, expected)


@settings(max_examples=60, deadline=None)
@given(penalties=any_penalties(11), seed=st.integers(0, 2**31))
def test_the_reference_penalises_what_came(penalties: Penalties, seed: int) -> None:
    """One token at a time, by the definition."""
    logits = logits_to_penalise(len(penalties.lines), 11, seed)
    expected = logits.clone()
    for row in range(len(logits)):
        line, length = int(penalties.lines[row]), int(penalties.lengths[row])
        came = dict(zip(penalties.tokens[line, :length].tolist(), penalties.times[line, :length].tolist(), strict=True))
        of_row = (penalties.draft_rows == row).nonzero().flatten()
        came |= {int(penalties.draft_tokens[i]): int(penalties.draft_times[i]) for i in of_row}
        for token, times in came.items():
            logit, repetition = expected[row, token], penalties.repetition[row]
            logit = logit / repetition if logit > 0 else logit * repetition
            if times:
                logit = logit - (penalties.presence[row] + penalties.frequency[row] * times)
            expected[row, token] = logit
    reference.penalise_listed(logits, penalties)
    assert torch.equal(logits, expected)


def test_finite_rows(host: HostFace) -> None:
    logits = torch.zeros(5, 3)
    logits[1, 2], logits[2, 0], logits[3, 1], logits[4] = math.nan, math.inf, -math.inf, -math.inf
    expected = [True, False, False, True, False]
    assert reference.finite_rows(logits).tolist() == host.finite_rows(apart(logits)).tolist() == expected


@pytest.mark.parametrize("vocab_size", [31, 32, 100, 4097])
def test_masked_logits(host: HostFace, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    words = torch.randint(
        -(2**31), 2**31, (3, math.ceil(vocab_size / 32)), generator=generator, dtype=torch.int64
    ).int()
    logits = random(3, vocab_size)
    logits[1, 5], expected = torch.nan, logits.clone()
    expected[1, 5] = torch.nan
    masked = apart(logits)
    reference.mask_logits(expected, words)
    host.mask_logits(masked, words)
    assert 0 < masked.isneginf().sum() < masked.numel()
    assert torch.equal(masked.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


@pytest.mark.parametrize("vocab_size", [1, 31, 4097])
def test_logprobs(host: HostFace, vocab_size: int) -> None:
    logits = (random(6, vocab_size) * 2).round() / 2  # some are equal
    logits[1, vocab_size // 2] = -math.inf
    tokens = torch.tensor([0, 0, vocab_size - 1, vocab_size // 3, vocab_size // 2, 0])
    for actual, wanted in zip(
        host.token_logprobs(apart(logits), tokens), reference.token_logprobs(logits, tokens), strict=True
    ):
        torch.testing.assert_close(actual, wanted, atol=4e-6, rtol=1e-6, equal_nan=True)


KINDS = {
    "native": lambda: (native_ops(), torch.bfloat16),
    "torch float32": lambda: (torch_ops(), torch.float32),
    "torch bfloat16": lambda: (torch_ops(torch.bfloat16), torch.bfloat16),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def computing(request: pytest.FixtureRequest) -> tuple[HostFace, Callable[[int, int, int, int], Tensor], torch.dtype]:
    """A host, what allocates KV for it, and the dtype that it computes in."""
    ops, dtype = request.param()
    if isinstance(ops, NativeOps):
        return HostFace(ops), lambda *sizes: tensor_of(ops.allocate_kv(*sizes)), dtype
    return HostFace(TorchHost(ops)), ops.allocate_kv, dtype


Computing = tuple[HostFace, Callable[[int, int, int, int], Tensor], torch.dtype]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("outputs", "hidden"), [(1, 8), (33, 40), (7, 17)])
def test_products_with_rows_of_a_head(computing: Computing, rows: int, outputs: int, hidden: int) -> None:
    host, _, dtype = computing
    assert host.dtype == dtype
    weight, x = random(outputs, hidden, dtype=dtype) / 4, random(rows, hidden, dtype=dtype, seed=1)
    actual = host.product(weight, x)
    assert actual.dtype == torch.float32
    expected = reference.linear(x.float(), weight.float(), None)
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_blocks(computing: Computing) -> None:
    host, allocate_kv, dtype = computing
    kv, shape = allocate_kv(2, 5, 3, 16), (2, 5, BLOCK_TOKENS, 2, 3, 16)
    assert (kv.dtype, kv.shape) == (dtype, shape)
    assert not kv.any()
    written = random(*shape, dtype=dtype)
    written[:, 2] = math.nan
    expected = written.clone()
    kv.copy_(written)
    for ops in (host, reference):
        blocks = kv if ops is host else expected
        ops.copy_blocks(blocks, torch.tensor([1, 3]), torch.tensor([0, 4]))
        ops.clear_blocks(blocks, torch.tensor([2, 1]))
    assert torch.equal(kv, expected)
    assert torch.equal(kv[:, [0, 4, 3]], written[:, [1, 3, 3]])
    assert not kv[:, [1, 2]].any()
    before = kv.clone()
    none = torch.zeros(0, dtype=torch.int64)
    host.copy_blocks(kv, none, none)
    host.clear_blocks(kv, none)
    assert torch.equal(kv, before)


def test_blocks_in_int8() -> None:
    """A byte a number and two a scale; scales are copied and cleared with their numbers."""
    ops, kv_heads, head_dim = native_ops(int8_kv=True), 3, 64
    host, kv = HostFace(ops), tensor_of(ops.allocate_kv(2, 5, kv_heads, head_dim))
    assert kv.nbytes * 128 == native_ops().allocate_kv(2, 5, kv_heads, head_dim).nbytes * 66
    assert not kv.any()
    numbers = random(2, 5, BLOCK_TOKENS, 2, kv_heads, head_dim, dtype=torch.bfloat16)
    kv.copy_(to_int8(numbers))
    kept = from_int8(kv, kv_heads, head_dim)
    assert ((kept - numbers.float()).abs() <= scales_of(numbers)[..., None] / 2).all()
    host.copy_blocks(kv, torch.tensor([1, 2]), torch.tensor([0, 4]))
    host.clear_blocks(kv, torch.tensor([2]))
    assert torch.equal(from_int8(kv, kv_heads, head_dim)[:, [0, 4, 1, 3]], kept[:, [1, 2, 1, 3]])
    assert not kv[:, 2].any()
