"""Drawn tokens are the reference's, whatever rows ask for; so are log-probabilities and ranks."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import share_that_differs
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.ops import FiniteTokens, SlotSampling
from kernels.reference_step import store_drawn
from kernels.step import DrawnPlaces, Row
from kernels.triton.bitmask import mask_rows
from kernels.triton.logprobs import token_logprobs
from kernels.triton.sampling import sample_slots
from tests.support.sampling_cases import MARGIN, by_rows, every_kind, margins, random_bitmask


def run(stage: Stage) -> None:
    for vocab_size in stage.scale.vocab_sizes:
        for dtype in stage.scale.dtypes[:2]:
            title = f"draws of every kind from {vocab_size} tokens, {str(dtype).removeprefix('torch.')}"
            stage.attempt(title, partial(_check_draws, stage, title, vocab_size, dtype))
        title = f"plain draws from {vocab_size} tokens"
        stage.attempt(title, partial(_check_plain, stage, title, vocab_size))
        title = f"log-probabilities of {vocab_size} tokens"
        stage.attempt(title, partial(_check_logprobs, stage, title, vocab_size))
    stage.attempt("unsound rows", lambda: _check_unsound(stage))


def _logits(stage: Stage, rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn((rows, vocab_size), generator=stage.generator, device=stage.device) * 3).to(dtype)


def _rows(stage: Stage) -> tuple[Tensor, Tensor]:
    """Rows over the eight slots of `every_kind`: slots and positions."""
    rows = stage.scale.sampled_rows
    slots = torch.arange(rows, dtype=torch.int32, device=stage.device) * 5 % 8
    positions = torch.randint(0, 2**33, (rows,), generator=stage.generator, device=stage.device)
    return slots, positions


def _check_draws(stage: Stage, title: str, vocab_size: int, dtype: torch.dtype) -> None:
    rows = stage.scale.sampled_rows
    columns, bitmask = every_kind(vocab_size), random_bitmask(rows, vocab_size)
    row_slots, positions = _rows(stage)
    logits = _logits(stage, rows, vocab_size, dtype)
    lines = torch.arange(rows, device=logits.device).flip(0)
    masked = logits.clone()
    reference.mask_rows(masked, lines, bitmask)
    mask_rows(logits, lines, bitmask)
    stage.checked(f"{title}: masks", share_that_differs(logits.isneginf(), masked.isneginf()), 0.0)
    edited = logits.clone()
    expected, _, _ = reference.sample_slots(edited, columns, row_slots, positions)
    arguments = {"uses_thresholds": True, "uses_penalties": True}
    again = logits.clone()
    ids, sound, _ = sample_slots(logits, columns, row_slots, positions, **arguments)
    clear = margins(edited, by_rows(columns, row_slots, positions)) > MARGIN
    detail = f"of {int(clear.sum())} rows of {rows} without a near tie"
    stage.checked(title, share_that_differs(ids[clear], expected[clear]), 0.0, detail)
    stage.checked(f"{title}: sound", float((~sound).double().mean()), 0.0)
    repeated, _, _ = sample_slots(again, columns, row_slots, positions, **arguments)
    stage.checked(f"{title}, again", share_that_differs(repeated, ids), 0.0, "must be the same")


def _check_plain(stage: Stage, title: str, vocab_size: int) -> None:
    """Without thresholds and penalties, as nearly all steps are; half of the rows are greedy."""
    columns = _plain(every_kind(vocab_size))
    row_slots, positions = _rows(stage)
    logits = _logits(stage, len(row_slots), vocab_size, torch.float32)
    expected, _, _ = reference.sample_slots(logits.clone(), columns, row_slots, positions)
    ids, sound, _ = sample_slots(logits, columns, row_slots, positions, uses_thresholds=False, uses_penalties=False)
    clear = margins(logits, by_rows(columns, row_slots, positions)) > MARGIN
    stage.checked(title, share_that_differs(ids[clear], expected[clear]), 0.0, f"of {int(clear.sum())} rows")
    stage.checked(f"{title}: sound", float((~sound).double().mean()), 0.0)


def _plain(columns: SlotSampling) -> SlotSampling:
    ones, zeros = torch.ones_like(columns.top_p), torch.zeros_like(columns.top_p)
    return SlotSampling(
        inverse_temperature=columns.inverse_temperature,
        noise_scale=torch.arange(len(ones), device=ones.device) % 2 * ones,
        top_k=torch.full_like(columns.top_k, columns.counts.shape[1]),
        top_p=ones,
        min_p=zeros,
        seeds=columns.seeds,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        counts=torch.zeros_like(columns.counts),
    )


def _check_logprobs(stage: Stage, title: str, vocab_size: int) -> None:
    count = stage.scale.sampled_rows
    logits = _logits(stage, count, vocab_size, torch.float32)
    rows = torch.arange(count, device=stage.device).flip(0)
    tokens = torch.randint(0, vocab_size, (count,), generator=stage.generator, device=stage.device)
    measured = token_logprobs(logits, rows, tokens)
    normalisers, logprobs, ranks = reference.token_logprobs(logits[rows].double(), tokens)
    stage.checked(title, float((measured.logprobs - logprobs).abs().max()), 1e-4, "nats")
    stage.checked(f"{title}: sums", float((measured.normalisers - normalisers).abs().max()), 1e-4, "nats")
    stage.checked(f"{title}: ranks", share_that_differs(measured.ranks, ranks), 0.0)


def _check_unsound(stage: Stage) -> None:
    """NaN, +inf and nothing left are found in whichever tile they are."""
    vocab_size, rows = stage.scale.vocab_sizes[-1], stage.scale.sampled_rows
    columns = _plain(every_kind(vocab_size))
    row_slots, positions = _rows(stage)
    logits = _logits(stage, rows, vocab_size, torch.float32)
    logits[3, vocab_size - 1], logits[5, 0], logits[7] = float("nan"), float("inf"), float("-inf")
    broken = {3, 5, 7}
    starts = torch.arange(0, 3 * rows + 1, 3, dtype=torch.int32, device=stage.device)
    hidden = FiniteTokens(torch.ones(3 * rows, dtype=torch.int8, device=stage.device), starts)
    hidden.finite[[3 * 1 + 2, 3 * 3, 3 * 4 + 1]] = 0
    lines = [Row(slot=row, start=5, tokens=1 + row % 4, drafts=0, draws=row % 2, first=0) for row in range(rows)]
    words = torch.tensor([[*line] for line in lines], dtype=torch.int32)
    tokens, kept = (torch.full((rows, 8), -1, dtype=torch.int32, device=each) for each in (stage.device, "cpu"))
    arguments = {"uses_thresholds": False, "uses_penalties": False, "hidden": hidden}
    places = DrawnPlaces(words.to(stage.device), tokens)
    ids, sound, finite = sample_slots(logits, columns, row_slots, positions, **arguments, places=places)
    store_drawn(DrawnPlaces(words, kept), ids.cpu())
    stage.checked("kept draws", share_that_differs(tokens.cpu(), kept), 0.0)
    assert finite is not None, "hidden states were not checked"
    expected = torch.tensor([row not in {1, 3, 4} for row in range(rows)], device=stage.device)
    stage.checked("rows whose hidden states are not finite", share_that_differs(finite, expected), 0.0)
    broken |= {1, 4}
    expected = torch.tensor([row not in broken for row in range(rows)], device=stage.device)
    stage.checked("unsound rows", share_that_differs(sound, expected), 0.0)
