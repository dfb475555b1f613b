"""The usage of a request: tokens for the client and the bill, and the engine's work."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import FinishReason, TextDelta, Usage
from gateway.admission.model import Scope
from gateway.metering.event import Ending
from gateway.metering.journal.usage_context import NO_WORK, Progress, Work
from gateway.speech.structured import StructuredDelta

_NS_PER_MS = 1_000_000


def token_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The required members of OpenAI's `usage` object."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


@dataclass(slots=True)
class UsageTotal:
    """The sum over all choices, true after every delta. A prompt counts once, whatever the number of its choices.

    `prompt_lengths`: tokens; a server that counts them itself may report others. `bound_by`: the limit that cut the
    length of the answers, if one did. `earlier`: the work of another model for the request, `earlier_tokens` the tokens
    that it computed. A choice that has not ended counts with the tokens that were read, and its prompt from the first
    of them on.
    """

    prompt_lengths: Sequence[int]
    choices_each: int
    bound_by: Scope | None = None
    earlier: Work = NO_WORK
    earlier_tokens: int = 0
    ended: set[int] = field(default_factory=set)
    ttft_ms: int | None = None
    _estimated: set[int] = field(default_factory=set)
    """Choices whose tokens are estimated as of their last delta: a server may report them at the end."""
    _reported_prompts: dict[int, int] = field(default_factory=dict)
    _completion_tokens: dict[int, int] = field(default_factory=dict)
    reasoning_tokens: int = 0
    """Of the completion tokens."""
    _cached_tokens: dict[int, int] = field(default_factory=dict)
    _consumed: dict[int, Usage] = field(default_factory=dict)
    _reasons: set[FinishReason] = field(default_factory=set)

    def add(self, choice: int, delta: TextDelta, reasoning_tokens: int = 0) -> None:
        """Count a delta that was read. `reasoning_tokens`: further tokens known to be reasoning."""
        self.reasoning_tokens += reasoning_tokens
        if isinstance(delta, StructuredDelta):
            (self._estimated.add if delta.is_estimated else self._estimated.discard)(choice)
            if delta.prompt_tokens is not None:
                self._reported_prompts[choice // self.choices_each] = delta.prompt_tokens
        counted = self._completion_tokens.get(choice, 0) + len(delta.token_ids)
        if choice % self.choices_each == 0:
            # The other choices share this choice's prompt.
            self._cached_tokens[choice] = delta.cached_tokens
        if delta.usage is not None:
            # The engine's count includes the end-of-text token.
            counted = delta.usage.completion_tokens
            self.ended.add(choice)
            self._consumed[choice] = delta.usage
        self._completion_tokens[choice] = counted
        if delta.finish_reason is not None:
            self._reasons.add(delta.finish_reason)

    def on_aborted(self, choice: int, usage: Usage) -> None:
        """The engine's report for a choice that was not read to its end."""
        self._consumed[choice] = usage

    @property
    def has_begun(self) -> bool:
        """Whether a delta was read."""
        return bool(self._completion_tokens)

    @property
    def settled(self) -> bool:
        """Whether the engine has reported what each choice consumed."""
        return len(self._consumed) == len(self.prompt_lengths) * self.choices_each

    @property
    def is_estimated(self) -> bool:
        """Whether a server has reported no usage so far, so that tokens are estimated."""
        return bool(self._estimated)

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompt_length(prompt) for prompt in {c // self.choices_each for c in self._completion_tokens})

    def _prompt_length(self, prompt: int) -> int:
        return self._reported_prompts.get(prompt, self.prompt_lengths[prompt])

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached_tokens.values())

    @property
    def completion_tokens(self) -> int:
        return sum(self._completion_tokens.values())

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def counted_tokens(self, unknown_answers: Sequence[int] = ()) -> int:
        """Tokens that count against limits, billed or not: of prompts those that were computed or cached, of answers
        all that were computed. 0: the engine has not begun.

        `unknown_answers`: by prompt, the tokens to assume for each of its choices without a report.
        """
        prompts = [0] * len(self.prompt_lengths)
        answers = 0
        for choice in range(len(self.prompt_lengths) * self.choices_each):
            prompt, known = choice // self.choices_each, self._consumed.get(choice)
            length, sent = self._prompt_length(prompt), self._completion_tokens.get(choice)
            if sent is not None or (known is not None and known.completion_tokens):
                prompts[prompt] = length
            if known is not None:
                prompts[prompt] = max(prompts[prompt], known.prefilled_tokens)
                answers += max(sent or 0, known.completion_tokens)
            elif unknown_answers:
                prompts[prompt] = length
                answers += max(sent or 0, unknown_answers[prompt])
            else:
                answers += sent or 0
        return self.earlier_tokens + sum(prompts) + answers

    @property
    def progress(self) -> Progress:
        """The counts so far, for the journal."""
        counts = (self.prompt_tokens, self.cached_tokens, self.completion_tokens)
        return Progress(*counts, self.ttft_ms, self.is_estimated)

    @property
    def work(self) -> Work:
        """The engine's work for all choices that it has reported on, plus `earlier`. The queue time is that of the
        first choice, the pause that of the longest."""
        consumed = self._consumed.values()
        recompute_ns: Counter[str] = Counter()
        for usage in consumed:
            if usage.recompute_ns:
                recompute_ns.update(usage.recompute_ns)
        return self.earlier + Work(
            undelivered_tokens=max(0, sum(each.completion_tokens for each in consumed) - self.completion_tokens),
            draft_tokens=sum(each.draft_tokens for each in consumed),
            accepted_draft_tokens=sum(each.accepted_draft_tokens for each in consumed),
            queue_ms=min((each.queue_ns for each in consumed), default=0) // _NS_PER_MS,
            paused_ms=max((each.paused_ns for each in consumed), default=0) // _NS_PER_MS,
            engine_ns=sum(each.engine_ns for each in consumed),
            recompute_ns=recompute_ns,
            preemptions=sum(each.preemptions for each in consumed),
        )

    @property
    def ending(self) -> Ending:
        """The finish reason of the request, once all choices have ended. One that was cut short decides."""
        if FinishReason.LENGTH in self._reasons:
            return Ending.LENGTH if self.bound_by is None else Ending.QUOTA
        return Ending.STOP

    def openai_usage(self) -> dict[str, Any]:
        """OpenAI's `usage` object. Extensions: `limited_by`, the limit that ended an answer, and `estimated`, where a
        server reported no tokens. Prediction tokens are those of speculative drafts, of choices that have ended;
        rejected ones are not billed."""
        consumed = self._consumed.values()
        drafts = sum(each.draft_tokens for each in consumed)
        accepted = sum(each.accepted_draft_tokens for each in consumed)
        usage = token_usage(self.prompt_tokens, self.completion_tokens) | {
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafts - accepted,
            },
        }
        if self.is_estimated:
            usage["estimated"] = True
        if self.bound_by is not None and FinishReason.LENGTH in self._reasons:
            usage["limited_by"] = {"scope": self.bound_by.kind.value, "limit": self.bound_by.measure.value}
        return usage
