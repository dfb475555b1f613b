"""The target's hidden states, kept for proposers that guess from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.execution.slots import slot_of
from engine.request import Request
from kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class _Kept:
    """Whose state a slot has, and of which of its positions."""

    request: Request
    position: int


class HiddenStateTable:
    """Of each slot, the normed hidden state that the latest token was drawn from.

    states: compute dtype [slots, H].
    """

    def __init__(self, states: Array) -> None:
        self._states = states
        self._kept: list[_Kept | None] = [None] * len(states)

    def keep(self, requests: Sequence[Request], positions: Sequence[int], hidden: Array) -> None:
        """Take over [R, H] of these positions of these requests."""
        slots = [slot_of(request) for request in requests]
        self._states[slots] = hidden
        for slot, request, position in zip(slots, requests, positions, strict=True):
            self._kept[slot] = _Kept(request, position)

    def has(self, request: Request) -> bool:
        """Is the state there that the request's last token was drawn from?"""
        kept = None if request.slot is None else self._kept[request.slot]
        return kept is not None and kept.request is request and kept.position == len(request.tokens) - 2

    def of(self, requests: Sequence[Request]) -> Array:
        """The states [R, H] of requests whose state is there."""
        assert all(map(self.has, requests)), "a hidden state is not there"
        return self._states[[slot_of(request) for request in requests]]
