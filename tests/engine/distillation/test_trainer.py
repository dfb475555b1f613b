"""Training steps: what they change, and that stopping changes nothing."""

from pathlib import Path

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.distillation.answers import Answer
from engine.distillation.corpus import frequent_tokens, make_corpus
from engine.distillation.decoder import Decoder
from engine.distillation.layers import layer_tensors
from engine.distillation.teacher import cache_hidden
from engine.distillation.trainer import Lesson, Recipe, Trainer
from engine.models.layout import EMBEDDING
from kernels.arrays import BFLOAT16
from kernels.exchange import tensor_of

RECIPE = Recipe(batch_tokens=128, common=64, rare=32)


@pytest.fixture(scope="module")
def weights(teacher_folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor_of(array) for name, array in open_checkpoint(teacher_folder).tensors(BFLOAT16)}


def make_lesson(teacher_folder: Path, weights: dict[str, torch.Tensor], path: Path) -> Lesson:
    drawn = torch.randint(3, 512, (12, 20), generator=torch.Generator().manual_seed(0)).tolist()
    corpus = make_corpus([Answer(f"{i:02}", tuple(row[:5]), tuple(row[5 : 10 + i])) for i, row in enumerate(drawn)])
    config = open_checkpoint(teacher_folder).config
    teacher = Decoder(config, 64, layer_tensors(weights, range(4)))
    return Lesson(corpus, cache_hidden(teacher, weights[EMBEDDING], corpus, path))


@pytest.fixture
def lesson(teacher_folder: Path, weights: dict[str, torch.Tensor], tmp_path: Path) -> Lesson:
    return make_lesson(teacher_folder, weights, tmp_path / "hidden")


@pytest.fixture
def trainer(teacher_folder: Path, weights: dict[str, torch.Tensor], lesson: Lesson) -> Trainer:
    return make_trainer(teacher_folder, weights, lesson)


def make_trainer(teacher_folder: Path, weights: dict[str, torch.Tensor], lesson: Lesson) -> Trainer:
    begun = {name: tensor.float() for name, tensor in layer_tensors(weights, (0, 3)).items()}
    student = Decoder(open_checkpoint(teacher_folder).config.of_layers((0, 3)), 64, begun)
    embedding = weights[EMBEDDING]
    return Trainer(student, embedding, embedding, lesson, frequent_tokens(lesson.corpus, 512), RECIPE)


def test_training_brings_the_student_nearer(trainer: Trainer, lesson: Lesson) -> None:
    everything = list(range(len(lesson.corpus)))
    before = trainer.measure(lesson, everything)
    losses = [trainer.train_step(0.2) for _ in range(60)]
    after = trainer.measure(lesson, everything)
    assert losses[-1] < losses[0]
    assert after.overlap > before.overlap + 0.1
    assert after.positions == lesson.corpus.positions


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    trainer: Trainer, teacher_folder: Path, weights: dict[str, torch.Tensor], lesson: Lesson, tmp_path: Path
) -> None:
    """Over an epoch's end, and with a learning rate that changes."""
    for step in range(8):
        trainer.train_step(step / 8)
    stopped = make_trainer(teacher_folder, weights, lesson)
    for step in range(3):
        stopped.train_step(step / 8)
    stopped.save(tmp_path / "student.pt", 12.5)
    resumed = make_trainer(teacher_folder, weights, lesson)
    assert resumed.load(tmp_path / "student.pt") == 12.5
    for step in range(3, 8):
        resumed.train_step(step / 8)
    assert (resumed.step, resumed.tokens) == (trainer.step, trainer.tokens)
    for name, tensor in trainer.student.state_dict().items():
        assert torch.equal(tensor, resumed.student.state_dict()[name]), name


def test_the_teachers_states_are_taken_over_from_a_stopped_run(
    teacher_folder: Path, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "hidden"
    whole = make_lesson(teacher_folder, weights, path).hidden.clone()
    content = path.read_bytes()
    # In the midst of a sequence, and of a row.
    path.write_bytes(b"\xff" * 10 + content[10 : len(content) // 2 + 1])
    again = make_lesson(teacher_folder, weights, path).hidden
    assert not torch.equal(again[0], whole[0]), "what was there was computed again"
    torch.testing.assert_close(again[1:], whole[1:], rtol=0.02, atol=0.02)


def test_the_rate_rises_and_falls_to_zero() -> None:
    recipe = Recipe(learning_rate=1.0, warm_up=0.1)
    rates = [recipe.rate(progress / 100) for progress in range(101)]
    assert (rates[0], rates[10]) == (0.0, 1.0)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert (rates[:11], rates[10:]) == (sorted(rates[:11]), sorted(rates[10:], reverse=True))
