"""The target model's last hidden states, kept for proposers that draft from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.execution.slots import slot_of
from engine.request import Request
from kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class _Kept:
    """The request and position that a slot's state belongs to."""

    request: Request
    position: int


class HiddenStateTable:
    """For each slot, the normed hidden state that the latest token was sampled from.

    states: compute dtype [slots, H].
    """

    def __init__(self, states: Array) -> None:
        self._states = states
        self._kept: list[_Kept | None] = [None] * len(states)

    def keep(self, requests: Sequence[Request], positions: Sequence[int], hidden: Array) -> None:
        """Store states [R, H] of these positions of these requests."""
        slots = [slot_of(request) for request in requests]
        self._states[slots] = hidden
        for slot, request, position in zip(slots, requests, positions, strict=True):
            self._kept[slot] = _Kept(request, position)

    def has(self, request: Request) -> bool:
        """Whether the state that the request's last token was sampled from is stored."""
        kept = None if request.slot is None else self._kept[request.slot]
        return kept is not None and kept.request is request and kept.position == len(request.tokens) - 2

    def of(self, requests: Sequence[Request]) -> Array:
        """The stored states [R, H] of these requests. Each must be stored."""
        assert all(map(self.has, requests)), "a hidden state is not stored"
        return self._states[[slot_of(request) for request in requests]]
