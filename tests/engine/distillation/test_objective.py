"""The loss, its gradient that is written down, and what agreement means."""

import pytest
import torch

from engine.distillation.objective import agreement, loss_and_gradient


def states(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))


def test_the_gradient_is_autograds() -> None:
    student, teacher, columns = states(600, 0).requires_grad_(), states(600, 1), states(50, 2)
    said = (student @ columns.T).log_softmax(-1)
    expected = -((teacher @ columns.T).softmax(-1) * said).sum(-1).mean()
    expected.backward()
    loss, gradient = loss_and_gradient(student.detach(), teacher, columns)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert student.grad is not None
    torch.testing.assert_close(gradient, student.grad)


def test_a_student_that_is_its_teacher_has_no_gradient() -> None:
    same, other, columns = states(8, 0), states(8, 2), states(50, 1)
    _, gradient = loss_and_gradient(same, same, columns)
    _, of_another = loss_and_gradient(other, same, columns)
    # Two ways to a softmax, each rounded: what is left is some units in the last place of float32.
    assert float(gradient.abs().max()) < 1e-6 * float(of_another.abs().max())
    met = agreement(same, same, columns)
    assert met.top1 == 1.0
    assert met.overlap == pytest.approx(1.0)
    assert met.positions == 8


def test_agreement_is_counted_position_by_position() -> None:
    head = torch.eye(4) * 50
    teacher = torch.eye(4)
    student = torch.eye(4)[[0, 1, 3, 2]]
    met = agreement(student, teacher, head)
    assert met.top1 == 0.5
    assert met.overlap == pytest.approx(0.5, abs=1e-6)
