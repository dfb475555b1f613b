"""Batches: what is read, what is predicted, and that nothing is lost or padded much."""

import torch

from engine.distillation.answers import Answer
from engine.distillation.corpus import epoch, frequent_tokens, make_batch, make_corpus


def answers(count: int) -> list[Answer]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 40, (count, 2), generator=generator).tolist()
    return [Answer(f"{i:04}", tuple(range(1, a + 1)), tuple(range(100, 100 + b))) for i, (a, b) in enumerate(lengths)]


def test_places_predict_the_answers_tokens() -> None:
    corpus = make_corpus([Answer("b", (1, 2, 3), (4, 5)), Answer("a", (6,), (7,)), Answer("c", (8,), ())])
    batch = make_batch(corpus, [0, 1])
    assert batch.inputs.tolist() == [[6, 0, 0, 0], [1, 2, 3, 4]]
    assert batch.inputs.flatten()[batch.predicting].tolist() == [6, 3, 4]
    assert batch.positions.tolist() == [0, 1, 2]
    assert corpus.positions == 3


def test_an_epoch_has_every_sequence_once_and_little_padding() -> None:
    corpus = make_corpus(answers(300))
    batches = epoch(corpus, 512, torch.Generator().manual_seed(0))
    assert sorted(index for members in batches for index in members) == list(range(300))
    padded = [make_batch(corpus, members).inputs.numel() for members in batches]
    assert max(padded) <= 512
    assert sum(padded) < 1.25 * sum(map(corpus.input_tokens, range(300)))


def test_epochs_differ_and_follow_from_their_generator() -> None:
    corpus = make_corpus(answers(100))
    first, again, other = (epoch(corpus, 512, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first == again
    assert sorted(map(sorted, first)) != sorted(map(sorted, other))


def test_the_order_of_the_answers_does_not_matter() -> None:
    assert make_corpus(answers(50)) == make_corpus(answers(50)[::-1])


def test_frequent_tokens_are_those_of_answers_by_falling_frequency() -> None:
    corpus = make_corpus([Answer("a", (9, 9, 9), (5, 7, 7)), Answer("b", (9,), (7, 6, 5))])
    assert frequent_tokens(corpus, 10).tolist() == [7, 5, 6]
    assert frequent_tokens(corpus, 2).tolist() == [7, 5]
    assert frequent_tokens(corpus, 2).dtype == torch.int32
