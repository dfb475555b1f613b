"""The tokens that penalties look at: those of running requests' prompts and outputs, kept from step to step."""

import numpy as np

from engine.request import Request
from kernels.arrays import Ints, Words
from kernels.cpu.memory import lazy_zeros

_INT32 = np.dtype(np.int32)


class SeenTokens:
    """A line of distinct tokens for each slot whose request has a penalty, and how often each came in the output.

    tokens, times: int32 [slots, most distinct tokens of a sequence]; pages of them become resident when they are used.
    lengths: int64 [slots], the entries of each line; 0 where the request has no penalty.

    A step costs what is new since the last: a line grows by the tokens that were not in it.
    """

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int) -> None:
        shape = num_slots, min(max_model_len, vocab_size)
        self.tokens: Words = lazy_zeros(shape, _INT32)
        self.times: Words = lazy_zeros(shape, _INT32)
        self.lengths: Ints = np.zeros(num_slots, dtype=np.int64)
        self._places: dict[int, dict[int, int]] = {}
        """For each slot that counts, the place of each token in its line."""
        self._taken: dict[int, int] = {}
        """For each of them, how many of its request's tokens are counted."""

    def begin(self, slot: int, request: Request) -> None:
        """The slot counts the tokens of this request from now on: those of the prompt are counted now."""
        prompt = request.tokens[: request.prompt_tokens]
        places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        count = len(places)
        self.tokens[slot, :count] = list(places)
        self.times[slot, :count] = 0
        self.lengths[slot] = count
        self._places[slot], self._taken[slot] = places, request.prompt_tokens

    def end(self, slot: int) -> None:
        """The slot counts nothing any more. Idempotent."""
        if self._places.pop(slot, None) is not None:
            del self._taken[slot]
            self.lengths[slot] = 0

    def counts_in(self, slot: int) -> bool:
        return slot in self._places

    @property
    def any(self) -> bool:
        """Whether any slot counts."""
        return bool(self._places)

    def catch_up(self, slot: int, request: Request) -> None:
        """Count the tokens that the request has got since."""
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
        """How often the token came in the output of the slot's request."""
        place = self._places[slot].get(token)
        return 0 if place is None else int(self.times[slot, place])
