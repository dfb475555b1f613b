"""Distils a student from a teacher and prompts, in stages that can each be resumed."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoints.huggingface.writer import can_be_written, write_folder
from engine.checkpoints.version import checkpoint_version
from engine.distillation.answers import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS, Answer, read_answers, write_answers
from engine.distillation.corpus import frequent_tokens, make_corpus
from engine.distillation.decoder import Decoder
from engine.distillation.errors import DistillationError
from engine.distillation.layers import layer_tensors
from engine.distillation.objective import Agreement
from engine.distillation.prompts import Prompt, read_prompts, write_prompts
from engine.distillation.teacher import cache_hidden
from engine.distillation.trainer import Lesson, Recipe, Trainer
from engine.models.layout import EMBEDDING, HEAD
from kernels.arrays import BFLOAT16
from kernels.exchange import array_of, tensor_of

MAX_FREQUENT_TOKENS = 16_384
HELD_OUT = "held_out.jsonl"
"""File in the student's folder with the held-out prompts of the evaluation."""

_MAX_POSITIONS = MAX_PROMPT_TOKENS + MAX_ANSWER_TOKENS
_GLANCE_SEQUENCES = 48
_GLANCE_S = 180.0
_SAVE_S = 120.0

Report = Callable[[str, float, float, str], None]
"""Called with (stage, amount done, total, a note on quality)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """The parameters of a run. `layers`: the teacher's layers that the student is initialised from, in order.

    Training lasts `minutes` or, if `steps` is given, exactly that many steps: then equal answers and seeds give equal
    students on the same machine. (Answers depend on the seed up to the engine's rounding, which depends on the batch.)
    `work`: folder with the state of an interrupted run.
    """

    teacher: Path
    prompts: Path
    layers: tuple[int, ...]
    output: Path
    work: Path
    minutes: float = 0.0
    steps: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """Agreement on the held-out prompts, and the effort of the run."""

    agreement: Agreement
    steps: int
    tokens: int
    answer_tokens: int
    minutes: float


def distill(task: Distillation, report: Report) -> Result:
    """Generate answers, compute the teacher's hidden states, train, and write the student's folder with the held-out
    prompts.

    Raises:
        DistillationError: there is no data to train on or to evaluate with, `work` belongs to another run, or the
            teacher is not of the Llama architecture.
        UnsupportedCheckpoint: the teacher cannot be served.
        PromptError: the prompt file is malformed.
    """
    prompts = read_prompts(task.prompts)
    teacher = open_checkpoint(task.teacher)
    if not can_be_written(teacher.config):
        raise DistillationError(f"a model of the family {teacher.config.family} cannot be distilled")
    _claim_work(task, prompts)
    write_answers(
        task.teacher,
        prompts,
        task.work / "answers.jsonl",
        seed=task.seed,
        progress=partial(_tell, report, "answers"),
    )
    answers = {answer.digest: answer for answer in read_answers(task.work / "answers.jsonl")}
    taught = [answers[prompt.digest] for prompt in prompts if prompt.digest in answers and not prompt.held_out]
    judged = [answers[prompt.digest] for prompt in prompts if prompt.digest in answers and prompt.held_out]
    if not taught or not judged:
        raise DistillationError(f"{task.prompts.name}: too few prompts: one in 32 is held out, and none was")
    result = _train(task, teacher, taught, judged, report)
    write_prompts(task.output / HELD_OUT, (prompt for prompt in prompts if prompt.held_out))
    return result


def _claim_work(task: Distillation, prompts: list[Prompt]) -> None:
    """Check that the `work` folder belongs to this run: token positions in it depend on the prompts."""
    task.work.mkdir(parents=True, exist_ok=True)
    mine = {
        "teacher": checkpoint_version(task.teacher),
        "prompts": hashlib.sha256("".join(prompt.digest for prompt in prompts).encode()).hexdigest(),
        "layers": list(task.layers),
        "seed": task.seed,
    }
    path = task.work / "run.json"
    if not path.exists():
        path.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    for name, value in mine.items():
        if kept.get(name) != value:
            raise DistillationError(f"{task.work} is of a run with other {name}: remove it, or go on with the same")


def _train(
    task: Distillation, teacher: Checkpoint, taught: list[Answer], judged: list[Answer], report: Report
) -> Result:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = {name: tensor_of(array).to(device) for name, array in teacher.tensors(BFLOAT16)}
    embedding = weights[EMBEDDING]
    head = weights.get(HEAD, embedding)
    lesson, exam = _lessons(task, teacher, weights, taught, judged, report)
    config = teacher.config.of_layers(task.layers)
    begun = {name: tensor.float() for name, tensor in layer_tensors(weights, task.layers).items()}
    student = Decoder(config, _MAX_POSITIONS, begun)
    frequent = frequent_tokens(lesson.corpus, MAX_FREQUENT_TOKENS)
    trainer = Trainer(student, embedding, head, lesson, frequent, Recipe(seed=task.seed))
    del weights
    elapsed_s = _run(task, trainer, exam, report)
    final = trainer.measure(exam, list(range(len(exam.corpus))))
    own = {name: array_of(tensor.to("cpu", torch.bfloat16)) for name, tensor in student.state_dict().items()}
    shared = {name: array_of(table.cpu()) for name, table in ((EMBEDDING, embedding), (HEAD, head))}
    if config.tie_embeddings:
        del shared[HEAD]
    write_folder(task.output, teacher, config, own | shared, array_of(frequent))
    return Result(final, trainer.step, trainer.tokens, lesson.corpus.positions, elapsed_s / 60)


def _lessons(
    task: Distillation,
    teacher: Checkpoint,
    weights: dict[str, Tensor],
    taught: list[Answer],
    judged: list[Answer],
    report: Report,
) -> tuple[Lesson, Lesson]:
    """The training and held-out sequences with the teacher's hidden states."""
    own = layer_tensors(weights, range(teacher.config.num_layers))
    decoder = Decoder(teacher.config, _MAX_POSITIONS, own)
    lessons = []
    for name, answers in (("held out", judged), ("taught", taught)):
        corpus = make_corpus(answers)
        hidden = cache_hidden(
            decoder,
            weights[EMBEDDING],
            corpus,
            task.work / f"{name.replace(' ', '_')}.hidden",
            partial(_tell, report, f"the teacher's view, {name}"),
        )
        lessons.append(Lesson(corpus, hidden))
    return lessons[1], lessons[0]


def _tell(report: Report, stage: str, done: int, total: int) -> None:
    report(stage, done, total, "")


def _run(task: Distillation, trainer: Trainer, exam: Lesson, report: Report) -> float:
    """Train until the budget is spent. Returns the training seconds, including those of resumed runs."""
    checkpoint = task.work / "student.pt"
    before_s = trainer.load(checkpoint) if checkpoint.exists() else 0.0
    started_s = saved_s = time.monotonic()
    glanced_s = -_GLANCE_S
    # Spread over the lengths: the exam's sequences are sorted by theirs.
    glance = list(range(0, len(exam.corpus), max(1, len(exam.corpus) // _GLANCE_SEQUENCES)))
    note = ""
    while True:
        now_s = time.monotonic()
        elapsed_s = before_s + now_s - started_s
        done, total = (elapsed_s, 60 * task.minutes) if task.steps is None else (float(trainer.step), float(task.steps))
        if now_s - glanced_s >= _GLANCE_S:
            seen = trainer.measure(exam, glance)
            note = f"{seen.top1:.1%} top-1, {seen.overlap:.1%} overlap after {trainer.tokens} tokens"
            glanced_s = now_s
        report("training", min(done, total), total, note)
        if now_s - saved_s >= _SAVE_S or done >= total:
            trainer.save(checkpoint, elapsed_s)
            saved_s = now_s
        if done >= total:
            return elapsed_s
        trainer.train_step(done / total)
