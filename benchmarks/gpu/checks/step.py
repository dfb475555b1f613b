"""Preparing a step equals its meaning exactly: uploads, what is derived of rows, what is kept of draws, counts."""

import random
from dataclasses import fields

import torch
from torch import Tensor

from benchmarks.gpu.checks import share_that_differs
from benchmarks.gpu.stage import Stage
from kernels import reference_step
from kernels.layout import BLOCK_TOKENS
from kernels.step import Counting, Row, Sequences, StepTensors
from kernels.triton import step
from kernels.triton.plan import SPLIT_TOKENS, number_splits, splits_of

_SLOTS, _DRAFTS, _VOCAB = 70, 4, 300


def run(stage: Stage) -> None:
    stage.attempt("scattered runs", lambda: _check_scatter(stage))
    stage.attempt("derived tensors", lambda: _check_derive(stage))
    stage.attempt("settled drafts", lambda: _check_settled(stage))
    stage.attempt("accepted drafts", lambda: _check_accepted(stage))
    stage.attempt("counted tokens", lambda: _check_counts(stage))
    stage.attempt("numbered splits", lambda: _check_splits(stage))


def _length(stage: Stage) -> int:
    """Tokens of the longest sequence, whole blocks of them."""
    return stage.scale.long_context // BLOCK_TOKENS * BLOCK_TOKENS


def _sequences(stage: Stage) -> tuple[Sequences, Sequences]:
    """On the device and on the host: slots full of different numbers, so that a wrong place is a wrong value."""
    length = _length(stage)
    shapes = ((_SLOTS, length), (_SLOTS, length // BLOCK_TOKENS), (_SLOTS, _DRAFTS))
    tables = [
        torch.randint(0, _VOCAB, shape, dtype=torch.int32, generator=stage.generator, device=stage.device)
        for shape in shapes
    ]
    return Sequences(*tables), Sequences(*(table.cpu() for table in tables))


def _rows(stage: Stage, rng: random.Random) -> list[Row]:
    """Single tokens, tokens with drafts, padding rows and chunks, each row in a slot of its own."""
    length, chunk = _length(stage), stage.scale.chunk
    slots = rng.sample(range(_SLOTS), _SLOTS)
    shapes = [(1, 0)] * 40 + [(1 + _DRAFTS, _DRAFTS), (3, 2)] * 3 + [(chunk, 0), (129, 0), (length, 0)]
    rows: list[Row] = []
    first = 0
    for slot, (tokens, drafts) in zip(slots, shapes, strict=False):
        padding = tokens == 1 and rng.random() < 0.2
        start = 0 if padding else rng.randrange(length - tokens + 1)
        rows.append(Row(-1 if padding else slot, start, tokens, drafts, int(not padding and rng.random() < 0.8), first))
        first += tokens
    return rows


def _table(rows: list[Row], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _check_scatter(stage: Stage) -> None:
    rng = stage.rng
    lengths = [rng.choice((1, 8, 40, 600)) for _ in range(60)]
    gaps = [length + rng.randrange(4) for length in lengths]
    places = [sum(gaps[:index]) for index in range(len(gaps))]
    rng.shuffle(order := list(range(len(lengths))))
    starts, targets, payload = [], [], list[int]()
    for run_index in order:
        starts.append(len(payload))
        targets.append(places[run_index])
        payload += [rng.randrange(-(2**31), 2**31) for _ in range(lengths[run_index])]
    upload = torch.tensor([*starts, *targets, *payload], dtype=torch.int32)
    words = torch.zeros(sum(gaps) + 9, dtype=torch.int32)
    on_device = words.to(stage.device)
    reference_step.scatter_runs(words, upload, len(lengths))
    step.scatter_runs(on_device, upload.to(stage.device), len(lengths))
    stage.checked("scattered runs", share_that_differs(on_device.cpu(), words), 0.0, f"{len(lengths)} runs")


def _check_derive(stage: Stage) -> None:
    rows = _rows(stage, stage.rng)
    on_device, on_host = _sequences(stage)
    tokens = sum(row.tokens for row in rows)
    derived = StepTensors.empty(len(rows), tokens, stage.device)
    expected = StepTensors.empty(len(rows), tokens, torch.device("cpu"))
    for field in fields(StepTensors):
        getattr(derived, field.name).fill_(-77)
    reference_step.derive(_table(rows, torch.device("cpu")), on_host, expected)
    step.derive(_table(rows, stage.device), on_device, derived, max(row.tokens for row in rows))
    for field in fields(StepTensors):
        differs = share_that_differs(getattr(derived, field.name).cpu(), getattr(expected, field.name))
        stage.checked(f"derived {field.name}", differs, 0.0)


def _half_drawn(stage: Stage, rows: list[Row], sequences: Sequences) -> tuple[Tensor, Tensor]:
    """The last draw of each row, and draws in which each draft is drawn in half of the cases."""
    drawn, last = list[int](), list[int]()
    for row in rows:
        proposed = sequences.drafts[row.slot, : row.drafts].tolist()
        drawn += [token + stage.rng.randrange(2) for token in proposed] + [0]
        last.append(len(drawn) - 1)
    return torch.tensor(last), torch.tensor(drawn)


def _check_settled(stage: Stage) -> None:
    rows = _rows(stage, stage.rng)
    on_device, on_host = _sequences(stage)
    host = _half_drawn(stage, rows, on_host)
    expected = reference_step.settled_tokens(_table(rows, torch.device("cpu")), on_host.drafts, *host)
    device = (each.to(stage.device) for each in host)
    settled = step.settled_tokens(_table(rows, stage.device), on_device.drafts, *device)
    stage.checked("settled drafts", share_that_differs(settled.cpu(), expected), 0.0)


def _check_accepted(stage: Stage) -> None:
    """Of rows with drafts, and of those that follow each of them."""
    rows = _rows(stage, stage.rng)
    on_device, on_host = _sequences(stage)
    last, drawn = _half_drawn(stage, rows, on_host)
    expected = torch.zeros(_SLOTS, dtype=torch.int32)
    rejected = expected.to(stage.device)
    reference_step.accept_drafts(_table(rows, torch.device("cpu")), on_host, last, drawn, expected)
    device = last.to(stage.device), drawn.to(stage.device)
    step.accept_drafts(_table(rows, stage.device), on_device, *device, rejected)
    stage.checked("rejected drafts", share_that_differs(rejected.cpu(), expected), 0.0)
    stage.checked("accepted drafts", share_that_differs(on_device.tokens.cpu(), on_host.tokens), 0.0)
    following = [
        row._replace(start=row.start + row.tokens, tokens=1, drafts=-row.drafts, first=index)
        for index, row in enumerate(rows)
    ]
    moved, lines = (_table(following, device) for device in (torch.device("cpu"), stage.device))
    reference_step.follow_accepted(moved, expected)
    step.follow_accepted(lines, rejected)
    stage.checked("rows that follow drafts", share_that_differs(lines.cpu(), moved), 0.0)


def _check_counts(stage: Stage) -> None:
    on_device, on_host = _sequences(stage)
    length, device = _length(stage), stage.device
    lines = [Counting(2, 0, 30, 6), Counting(0, 50, 51, 20), Counting(4, 0, length, length // 2), Counting(1, 3, 3, 9)]
    counts = torch.zeros((_SLOTS, _VOCAB), dtype=torch.int32)
    counted = counts.to(device)
    reference_step.count_tokens(counts, on_host.tokens, torch.tensor(lines, dtype=torch.int32))
    step.count_tokens(counted, on_device.tokens, torch.tensor(lines, dtype=torch.int32, device=device))
    stage.checked("counted tokens", share_that_differs(counted.cpu(), counts), 0.0)


def _check_splits(stage: Stage) -> None:
    rng = stage.rng
    contexts = [rng.choice((0, 1, SPLIT_TOKENS, SPLIT_TOKENS + 1, rng.randrange(100_000))) for _ in range(600)]
    starts = torch.full((len(contexts) + 1,), -77, dtype=torch.int32, device=stage.device)
    counters = torch.full((100_003,), -77, dtype=torch.int32, device=stage.device)
    number_splits(torch.tensor(contexts, dtype=torch.int32, device=stage.device), starts, counters)
    expected = torch.tensor([0, *map(splits_of, contexts)]).cumsum(0).int()
    stage.checked("numbered splits", share_that_differs(starts.cpu(), expected), 0.0, f"{len(contexts)} rows")
    stage.checked("cleared counters", share_that_differs(counters.cpu(), torch.zeros_like(counters.cpu())), 0.0)
