"""Selection of the teacher's layers that a student is initialised from."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine.distillation.errors import DistillationError
from engine.models.layout import FINAL_NORM


def chosen_layers(wanted: str, of: int) -> tuple[int, ...]:
    """A list such as "0,1,29", or a count: then half of the layers are the teacher's first and half its last.

    Raises:
        DistillationError: malformed, or the teacher has no such layers.
    """
    try:
        numbers = tuple(int(part) for part in wanted.split(","))
    except ValueError as error:
        raise DistillationError(f"layers: {wanted!r} is neither a count nor a list such as 0,1,29") from error
    if "," in wanted:
        if list(numbers) != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < of:
            raise DistillationError(f"layers: {wanted} is not a rising list of numbers from 0 to {of - 1}")
        return numbers
    (count,) = numbers
    if not 1 <= count <= of:
        raise DistillationError(f"layers: {count} of a teacher with {of}")
    first = -(-count // 2)
    return (*range(first), *range(of - count + first, of))


def layer_tensors(weights: Mapping[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of these layers, renumbered from 0, and the final norm."""
    renamed = {FINAL_NORM: weights[FINAL_NORM]}
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{layer}."
        renamed.update(
            (f"model.layers.{index}.{name.removeprefix(prefix)}", tensor)
            for name, tensor in weights.items()
            if name.startswith(prefix)
        )
    return renamed
