"""Prompts with answers as training sequences, and their batches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.distillation.answers import Answer

_LENGTH_NOISE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sequences in order of length, so that neighbours can share a batch without padding.

    The answers' tokens are the targets. Their positions, sequence after sequence, are numbered 0 .. `positions` - 1;
    those of sequence i start at `first_position[i]`.
    """

    sequences: tuple[Answer, ...]
    first_position: tuple[int, ...]
    positions: int

    def __len__(self) -> int:
        return len(self.sequences)

    def input_tokens(self, index: int) -> int:
        """Input length of a sequence: all but its last token."""
        answer = self.sequences[index]
        return len(answer.prompt_ids) + len(answer.answer_ids) - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """`inputs`: int64 [B, L], padded at the ends with token 0. `predicting`: int64 [P], indices into B x L of the
    positions that predict answer tokens. `positions`: int64 [P], numbers of those tokens in the corpus."""

    inputs: Tensor
    predicting: Tensor
    positions: Tensor


def make_corpus(answers: Sequence[Answer]) -> Corpus:
    """The corpus of all answers of at least one token."""
    kept = [answer for answer in answers if answer.answer_ids]
    kept.sort(key=lambda answer: (len(answer.prompt_ids) + len(answer.answer_ids), answer.digest))
    firsts, positions = [], 0
    for answer in kept:
        firsts.append(positions)
        positions += len(answer.answer_ids)
    return Corpus(tuple(kept), tuple(firsts), positions)


def make_batch(corpus: Corpus, members: Sequence[int]) -> Batch:
    longest = max(map(corpus.input_tokens, members))
    inputs = torch.zeros(len(members), longest, dtype=torch.int64)
    predicting, positions = [], []
    for row, member in enumerate(members):
        answer = corpus.sequences[member]
        tokens = torch.tensor((*answer.prompt_ids, *answer.answer_ids[:-1]))
        inputs[row, : len(tokens)] = tokens
        start = row * longest + len(answer.prompt_ids) - 1
        predicting.append(torch.arange(start, start + len(answer.answer_ids)))
        first = corpus.first_position[member]
        positions.append(torch.arange(first, first + len(answer.answer_ids)))
    return Batch(inputs, torch.cat(predicting), torch.cat(positions))


def epoch(corpus: Corpus, batch_tokens: int, generator: torch.Generator) -> list[list[int]]:
    """Every sequence once in random order, in batches of similar length and at most `batch_tokens` tokens with padding.

    Noise on the lengths varies the batches from epoch to epoch.
    """
    noise = torch.rand(len(corpus), generator=generator) * _LENGTH_NOISE_TOKENS
    lengths = torch.tensor([corpus.input_tokens(index) for index in range(len(corpus))])
    batches = list(grouped(corpus, torch.argsort(lengths + noise).tolist(), batch_tokens))
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def grouped(corpus: Corpus, order: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Neighbours in `order` batched while they fit `batch_tokens` with padding; at least one sequence a batch."""
    members: list[int] = []
    longest = 0
    for index in order:
        longest = max(longest, corpus.input_tokens(index))
        if members and longest * (len(members) + 1) > batch_tokens:
            yield members
            members, longest = [], corpus.input_tokens(index)
        members.append(index)
    if members:
        yield members


def frequent_tokens(corpus: Corpus, max_count: int) -> Tensor:
    """The tokens of the answers, int32, by descending frequency; at most `max_count`."""
    counts: Counter[int] = Counter()
    for answer in corpus.sequences:
        counts.update(answer.answer_ids)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return torch.tensor(ranked[:max_count], dtype=torch.int32)
