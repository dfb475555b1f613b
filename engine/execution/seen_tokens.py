"""Token counts for penalties, kept incrementally for running requests."""

import numpy as np

from engine.request import Request
from kernels.arrays import Ints, Words
from kernels.cpu.memory import lazy_zeros

_INT32 = np.dtype(np.int32)


class SeenTokens:
    """For each slot whose request has a penalty, the distinct tokens of prompt and output, and how often each occurs in
    the output.

    tokens, times: int32 [slots, maximum distinct tokens of a sequence]; memory pages become resident on first use.
    lengths: int64 [slots], entries of each row; 0 if the request has no penalty.

    A step costs O(new tokens).
    """

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int) -> None:
        shape = num_slots, min(max_model_len, vocab_size)
        self.tokens: Words = lazy_zeros(shape, _INT32)
        self.times: Words = lazy_zeros(shape, _INT32)
        self.lengths: Ints = np.zeros(num_slots, dtype=np.int64)
        self._places: dict[int, dict[int, int]] = {}
        """For each counting slot, the index of each token in its row."""
        self._taken: dict[int, int] = {}
        """For each counting slot, how many of its request's tokens are counted."""

    def begin(self, slot: int, request: Request) -> None:
        """Start to count a request's tokens in a slot, with those of the prompt."""
        prompt = request.tokens[: request.prompt_tokens]
        places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        count = len(places)
        self.tokens[slot, :count] = list(places)
        self.times[slot, :count] = 0
        self.lengths[slot] = count
        self._places[slot], self._taken[slot] = places, request.prompt_tokens

    def end(self, slot: int) -> None:
        """Stop counting in a slot. Idempotent."""
        if self._places.pop(slot, None) is not None:
            del self._taken[slot]
            self.lengths[slot] = 0

    def counts_in(self, slot: int) -> bool:
        """Whether the slot counts."""
        return slot in self._places

    @property
    def any(self) -> bool:
        """Whether any slot counts."""
        return bool(self._places)

    def catch_up(self, slot: int, request: Request) -> None:
        """Count the request's tokens generated since the last call."""
        taken = self._taken[slot]
        if taken == len(request.tokens):
            return
        places, tokens, times = self._places[slot], self.tokens[slot], self.times[slot]
        for token in request.tokens[taken:]:
            place = places.setdefault(token, len(places))
            if place == self.lengths[slot]:
                tokens[place], times[place] = token, 0
                self.lengths[slot] += 1
            times[place] += 1
        self._taken[slot] = len(request.tokens)

    def times_of(self, slot: int, token: int) -> int:
        """How often the token occurs in the output of the slot's request."""
        place = self._places[slot].get(token)
        return 0 if place is None else int(self.times[slot, place])
