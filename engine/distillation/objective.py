"""The training loss, and the agreement of a student with its teacher."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 256
"""Rows computed at a time, so that logits of a few thousand columns stay in a core's cache."""


def loss_and_gradient(student: Tensor, teacher: Tensor, columns: Tensor) -> tuple[float, Tensor]:
    """Mean cross-entropy of the student to the teacher over some columns of the head, and its gradient [P, H].

    `student`, `teacher`: normed hidden states [P, H]. `columns`: rows [C, H] of the head. Both distributions are over
    these columns. The gradient is explicit, (softmax(student) - softmax(teacher)) @ head, so that logits are not stored
    and the frozen head needs no gradient.
    """
    gradient = torch.empty_like(student, dtype=torch.float32)
    total = torch.zeros((), device=student.device)
    scale = 1.0 / student.shape[0]
    for rows in _pieces(student.shape[0]):
        target = (teacher[rows].to(columns.dtype) @ columns.T).float().softmax(-1)
        predicted = (student[rows].to(columns.dtype) @ columns.T).float().log_softmax(-1)
        total -= torch.dot(target.flatten(), predicted.flatten())
        gradient[rows] = ((predicted.exp_() - target) * scale).to(columns.dtype) @ columns
    return float(total) * scale, gradient


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of student and teacher over the whole vocabulary, as means over `positions`.

    `top1`: rate of equal most likely tokens. `overlap`: sum over tokens of the smaller of both probabilities, which is
    the acceptance rate of speculative sampling at temperature 1 (Leviathan et al. 2023).
    """

    top1: float
    overlap: float
    positions: int


def agreement(student: Tensor, teacher: Tensor, head: Tensor) -> Agreement:
    """Agreement of normed hidden states [P, H] under the whole head [V, H]."""
    same = torch.zeros((), device=student.device)
    shared = torch.zeros((), device=student.device)
    for rows in _pieces(student.shape[0]):
        target = (teacher[rows].to(head.dtype) @ head.T).float().softmax(-1)
        predicted = (student[rows].to(head.dtype) @ head.T).float().softmax(-1)
        same += (target.argmax(-1) == predicted.argmax(-1)).sum()
        shared += torch.minimum(target, predicted).sum()
    count = student.shape[0]
    return Agreement(float(same) / count, float(shared) / count, count)


def _pieces(rows: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, rows, _ROWS))
