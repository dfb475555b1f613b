"""How a model writes what is not for its reader: calls of tools, and what it says to itself.

A checkpoint does not say so in a field of its own. Its chat template shows it, which has to write earlier calls as the
model would, and its vocabulary, where the markers are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.text.chat_template import ChatTemplate
from engine.text.reasoning_span import ReasoningTracker
from engine.text.tokenizer import Tokenizer


class CallForm(StrEnum):
    """Families by how they write calls."""

    HERMES = "hermes"
    """`<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Qwen does, too."""
    LLAMA = "llama"
    """`{"name": .., "parameters": {..}}`, with or without `<|python_tag|>` in front."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]` and an array of calls, or `[TOOL_CALLS]name[ARGS]{..}`."""


@dataclass(frozen=True, slots=True)
class Markers:
    """What a span begins and ends with."""

    begin: str
    end: str


_REASONING = (Markers("<think>", "</think>"), Markers("[THINK]", "[/THINK]"))
_SIGNS = (
    ("<tool_call>", CallForm.HERMES),
    ("[TOOL_CALLS]", CallForm.MISTRAL),
    ("<|python_tag|>", CallForm.LLAMA),
    ('"parameters": ', CallForm.LLAMA),  # templates of Llama 3.2, which know the tag by its name only
)
_MARKERS = {
    CallForm.HERMES: ("<tool_call>", "</tool_call>"),
    CallForm.LLAMA: ("<|python_tag|>",),
    CallForm.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
}
_PROMPT_END_TOKENS = 16
"""Where a prompt ends with a marker, it is among so many tokens, if the marker is none itself."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`knows_tools`: the chat template shows the model which tools there are. `takes_system`: it takes a system
    message. `takes_parallel_calls`: it takes several calls in one message. `reasoning` marks what the model says to
    itself, None: it does not; `reasoning_ids` are the tokens of these markers, where they are one each. `marker_ids`
    are special tokens that are markers, to be kept in an answer's text.
    """

    knows_tools: bool = False
    takes_system: bool = True
    takes_parallel_calls: bool = True
    call_form: CallForm = CallForm.HERMES
    reasoning: Markers | None = None
    reasoning_ids: tuple[int, int] | None = None
    marker_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate | None) -> "Dialect":
        source = "" if template is None else template.source + (template.tool_source or "")
        knows_tools = template is not None and template.knows_tools
        form = _call_form(tokenizer, source) if knows_tools else CallForm.HERMES
        reasoning = next((each for each in _REASONING if _writes(each, tokenizer, source)), None)
        markers = _MARKERS[form] if reasoning is None else (*_MARKERS[form], reasoning.begin, reasoning.end)
        special = tokenizer.special_texts
        marker_ids = frozenset(special[marker] for marker in markers if marker in special)
        takes_system = template is None or template.takes_system
        reasoning_ids = None if reasoning is None else _ids_of(reasoning, tokenizer)
        parallel = template is None or template.takes_parallel_calls
        return cls(knows_tools, takes_system, parallel, form, reasoning, reasoning_ids, marker_ids)

    def reasoning_tracker(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, has_grammar: bool = False
    ) -> ReasoningTracker | None:
        """A tracker for one answer to this prompt, token ids; None: there is no reasoning in it. Where the markers are
        no tokens of their own, a grammar holds the answer from its first token, so that nothing of it is reasoning."""
        if self.reasoning is None or (has_grammar and self.reasoning_ids is None):
            return None
        return ReasoningTracker(
            self.reasoning.begin,
            self.reasoning.end,
            self.reasoning_ids,
            tokenizer.token_bytes,
            opened=self.reasons_already(tokenizer, prompt),
        )

    def reasons_already(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Whether an answer to this prompt begins inside a span of reasoning: the template has opened it."""
        if self.reasoning is None:
            return False
        end = b"".join(map(tokenizer.token_bytes, prompt[-_PROMPT_END_TOKENS:]))
        return end.rstrip().endswith(self.reasoning.begin.encode())


def _call_form(tokenizer: Tokenizer, source: str) -> CallForm:
    """By the template first: a vocabulary may come from a base model with another way."""
    by_template = (form for sign, form in _SIGNS if sign in source)
    by_vocabulary = (form for sign, form in _SIGNS if tokenizer.token_of(sign) is not None)
    return next(by_template, None) or next(by_vocabulary, CallForm.HERMES)


def _writes(markers: Markers, tokenizer: Tokenizer, source: str) -> bool:
    return _ids_of(markers, tokenizer) is not None or (markers.begin in source and markers.end in source)


def _ids_of(markers: Markers, tokenizer: Tokenizer) -> tuple[int, int] | None:
    begin, end = tokenizer.token_of(markers.begin), tokenizer.token_of(markers.end)
    return None if begin is None or end is None else (begin, end)
