"""The prefill that a step may have, limited by the step's predicted time (chunked prefill with stall-free batching:
Agrawal et al. 2024, Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve)."""

from math import sqrt

from engine.config import BLOCK_TOKENS
from engine.request import Request
from engine.scheduling.cost import StepCostModel, StepWork, row_work
from engine.scheduling.step_limits import StepLimits

MIN_CHUNK_TOKENS = BLOCK_TOKENS
"""Prefill that is exempt from all bounds, so that prompts always make progress."""
KEPT_THROUGHPUT = 0.9
"""Minimum fraction of prefill throughput that is kept where steps are short for the time between tokens."""


class StepAllowance:
    """Grants prefill to the rows of one step, in addition to its decode rows.

    Three bounds, each on the step's predicted time or size:

    - No step is longer than `limits.longest_ns`, a fraction of the watchdog's timeout.
    - A step with decodes of a class that has a target for the time between tokens is no longer than the target
      (stall-free batching). Where such short steps would cost more than 1 - `KEPT_THROUGHPUT` of the prefill rate, the
      bound is the shortest step that keeps that rate. With D the time of the decodes and P that of a full chunk, a
      chunk of time q computes prefill for q / (D + q) of the time, so q = KEPT * P * D / (D + (1 - KEPT) * P): a step
      of at most D / (1 - KEPT), ten times the time of its decodes alone.
    - No step is much larger than the fast steps measured so far: see `MeasuredWork`.

    The first `MIN_CHUNK_TOKENS` of a step are exempt from all three. The first prefill row that is truncated closes the
    step for further prefill. Otherwise a lower class could use the remaining time because tokens near the start of a
    prompt are cheaper than tokens far into it (priority inversion).
    """

    def __init__(self, cost_model: StepCostModel, limits: StepLimits, decode: StepWork, full_tokens: int) -> None:
        """`decode`: the work of one token for each running request. `full_tokens`: prefill without these bounds."""
        assert limits.longest_ns is not None
        self._cost_model = cost_model
        self._longest_ns = limits.longest_ns
        self._target_ns = limits.itl_target_ns
        self._full_tokens = full_tokens
        self._decode_ns = self._planned_ns = float(cost_model.predict_ns(decode))
        measured = cost_model.measured
        self._unmeasured_tokens = measured.max_tokens - decode.tokens
        self._unmeasured_pairs = measured.max_pairs
        self._least = MIN_CHUNK_TOKENS
        self._has_prefill = False
        self._is_full = False
        self.shortened = False
        """Whether the target for the time between tokens has shortened a row."""
        self.nominal_tokens = max(self._within(self._bound_ns(0), 0, 0, full_tokens), min(self._least, full_tokens))
        """Tokens that the step may have of a prompt that starts at position 0."""

    def extend(self, start: int, tokens: int) -> int:
        """Grant up to `tokens` tokens to the row of a running request that starts at `start` and already counts one.
        Returns the granted tokens, at least 1."""
        if tokens == 1:
            return 1
        granted = self._grant(start, tokens, counted=1)
        self._take(start, granted, counted=1)
        return granted

    def admits(self, request: Request) -> bool:
        """Whether a waiting request can have a token. Assumes the longest context that it can start with."""
        if self._is_full:
            return False
        return self._least > 0 or self._within(self._bound_ns(0), len(request.tokens), 0, 1) == 1

    def begin(self, request: Request, tokens: int) -> int:
        """Grant up to `tokens` tokens to an admitted request. Returns the granted tokens, at least 1."""
        start = request.computed
        granted = max(self._grant(start, tokens, counted=0), 1)
        self._take(start, granted, counted=0)
        return granted

    def open_to_drafts(self) -> int:
        """Switch to granting drafts. In a step without prefill the target does not bound them, as the number of drafts
        is chosen to minimise the time per token. Returns approximately how many can be granted."""
        if not self._has_prefill:
            self._target_ns = None
        if self._is_full:
            return 0
        return max(self._within(self._bound_ns(0), 0, 0, self._full_tokens), self._least)

    def _grant(self, start: int, tokens: int, *, counted: int) -> int:
        if self._is_full:
            return counted
        bound_ns = self._bound_ns(start)
        granted = self._within(bound_ns, start, counted, tokens)
        if bound_ns < self._longest_ns and granted < tokens:
            assert self._target_ns is not None
            if bound_ns > self._target_ns and not self._has_prefill:
                granted += 1  # the smallest that keeps the rate
            self.shortened = True
        granted = min(tokens, max(granted, self._least + counted))
        self._is_full = granted < tokens
        return granted

    def _take(self, start: int, tokens: int, *, counted: int) -> None:
        if tokens == counted:
            return
        self._has_prefill = True
        self._least = max(self._least - (tokens - counted), 0)
        self._planned_ns += self._cost_model.row_ns(start, tokens) - counted * self._cost_model.row_ns(start, 1)
        self._unmeasured_tokens -= tokens - counted
        self._unmeasured_pairs -= row_work(start, tokens).prefill_pairs

    def _bound_ns(self, start: int) -> float:
        """The maximum time of the step with a chunk of prefill from position `start` on."""
        if self._target_ns is None:
            return self._longest_ns
        decode_ns = self._decode_ns
        full_ns = min(self._cost_model.row_ns(start, self._full_tokens), max(self._longest_ns - decode_ns, 0.0))
        kept_ns = KEPT_THROUGHPUT * full_ns * decode_ns / max(decode_ns + (1.0 - KEPT_THROUGHPUT) * full_ns, 1.0)
        return min(max(self._target_ns, decode_ns + kept_ns), self._longest_ns)

    def _within(self, bound_ns: float, start: int, counted: int, tokens: int) -> int:
        """The largest row, up to `tokens`, that keeps the step within its bound; `counted` are planned already."""
        spare_ns = bound_ns - self._planned_ns + counted * self._cost_model.row_ns(start, 1)
        within = self._cost_model.chunk_within(spare_ns, start, high=tokens)
        before = start + 0.5
        familiar = int(sqrt(before * before + 2 * max(self._unmeasured_pairs, 0)) - before)
        return max(min(within, self._unmeasured_tokens + counted, familiar), counted)
