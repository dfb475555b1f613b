"""Trains a student: steps, learning rate, and checkpoints that resume exactly."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.distillation.corpus import Batch, Corpus, epoch, make_batch
from engine.distillation.decoder import Decoder
from engine.distillation.objective import Agreement, agreement, loss_and_gradient

BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Lesson:
    """Sequences, and the teacher's hidden states [positions, H] over their answers."""

    corpus: Corpus
    hidden: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hyper-parameters of training. A step's loss is over the `common` most frequent tokens and `rare` random
    others."""

    seed: int = 0
    batch_tokens: int = BATCH_TOKENS
    learning_rate: float = 8e-4
    warm_up: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    common: int = 6144
    rare: int = 2048

    def rate(self, progress: float) -> float:
        """The learning rate at a fraction of the training: linear warm-up, then cosine decay to zero (Loshchilov and
        Hutter 2017)."""
        if progress < self.warm_up:
            return self.learning_rate * progress / self.warm_up
        done = min(1.0, (progress - self.warm_up) / (1.0 - self.warm_up))
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))


class Trainer:
    """Owns the student's parameters, the optimiser and the position in the data.

    `embedding` [V, H] and `head` [V, H] are the teacher's, frozen. All randomness derives from the seed, the epoch and
    the step, so a resumed run equals an uninterrupted one.
    """

    def __init__(
        self,
        student: Decoder,
        embedding: Tensor,
        head: Tensor,
        lesson: Lesson,
        frequent: Tensor,
        recipe: Recipe,
    ) -> None:
        self.student = student
        self.step = 0
        self.tokens = 0
        """Answer tokens trained on, with repetitions."""
        self._embedding, self._head = embedding, head
        self._lesson, self._recipe = lesson, recipe
        self._common = frequent[: recipe.common].long()
        rest = torch.ones(head.shape[0], dtype=torch.bool)
        rest[self._common] = False
        self._others = rest.nonzero().flatten()
        self._optimizer = _optimizer(student, recipe)
        self._epoch, self._at = 0, 0
        self._batches = self._shuffled()

    def train_step(self, progress: float) -> float:
        """Train on one batch at the learning rate of `progress` in 0..1; returns the loss before the step."""
        batch = self._next_batch()
        hidden = self._forward(batch)
        wanted = self._lesson.hidden[batch.positions].to(hidden.device)
        loss, gradient = loss_and_gradient(hidden.detach(), wanted, self._head[self._columns()])
        torch.autograd.backward(hidden, gradient.to(hidden.dtype))
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), self._recipe.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(progress)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += len(batch.positions)
        return loss

    @torch.no_grad()
    def measure(self, lesson: Lesson, members: list[int]) -> Agreement:
        """Agreement with the teacher over some sequences of a lesson."""
        student, teacher = [], []
        for member in members:
            batch = make_batch(lesson.corpus, [member])
            student.append(self._forward(batch))
            teacher.append(lesson.hidden[batch.positions].to(self._head.device))
        return agreement(torch.cat(student), torch.cat(teacher), self._head)

    def save(self, path: Path, elapsed_s: float) -> None:
        """Write all state that `load` needs, replacing the file atomically."""
        state = {
            "elapsed_s": elapsed_s,
            "student": self.student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "epoch": self._epoch,
            "at": self._at,
        }
        beside = path.with_suffix(".new")
        torch.save(state, beside)
        os.replace(beside, path)

    def load(self, path: Path) -> float:
        """Resume from what `save` wrote; returns its `elapsed_s`."""
        state: dict[str, Any] = torch.load(path, map_location=self._head.device, weights_only=True)
        self.student.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens = state["step"], state["tokens"]
        self._epoch, self._at = state["epoch"], state["at"]
        self._batches = self._shuffled()
        return float(state["elapsed_s"])

    def _forward(self, batch: Batch) -> Tensor:
        """Normed hidden states [P, H] at the predicting positions."""
        device = self._head.device
        with torch.autocast(device.type, torch.bfloat16):
            hidden: Tensor = self.student(self._embedding[batch.inputs.to(device)].float())
        return hidden.flatten(0, 1)[batch.predicting.to(device)]

    def _next_batch(self) -> Batch:
        if self._at == len(self._batches):
            self._epoch, self._at = self._epoch + 1, 0
            self._batches = self._shuffled()
        self._at += 1
        return make_batch(self._lesson.corpus, self._batches[self._at - 1])

    def _shuffled(self) -> list[list[int]]:
        return epoch(self._lesson.corpus, self._recipe.batch_tokens, self._generator(self._epoch))

    def _columns(self) -> Tensor:
        drawn = torch.randperm(len(self._others), generator=self._generator(self.step, 1))[: self._recipe.rare]
        return torch.cat((self._common, self._others[drawn])).to(self._head.device)

    def _generator(self, number: int, kind: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed((self._recipe.seed << 32) + 2 * number + kind)


def _optimizer(student: Decoder, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019); norms and biases do not decay."""
    matrices = [parameter for parameter in student.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in student.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
