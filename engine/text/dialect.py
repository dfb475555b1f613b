"""The syntax in which a model writes tool calls and reasoning.

Checkpoints have no field for it. It is detected from the chat template, which has to render earlier calls in the
model's own syntax, and from the vocabulary, where the markers are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.text.chat_template import ChatTemplate
from engine.text.reasoning_span import ReasoningTracker
from engine.text.tokenizer import Tokenizer


class CallForm(StrEnum):
    """Families of tool call syntax."""

    HERMES = "hermes"
    """`<tool_call>{"name": .., "arguments": {..}}</tool_call>`; Qwen's, too."""
    LLAMA = "llama"
    """`{"name": .., "parameters": {..}}`, optionally after `<|python_tag|>`."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]` and an array of calls, or `[TOOL_CALLS]name[ARGS]{..}`."""
    GLM = "glm"
    """`<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`"""
    MINIMAX = "minimax"
    """`<minimax:tool_call><invoke name="NAME"><parameter name="K">V</parameter></invoke></minimax:tool_call>`"""
    QWEN_XML = "qwen_xml"
    """`<tool_call><function=NAME><parameter=K>V</parameter></function></tool_call>`: Qwen3-Coder and Qwen3.5."""
    DEEPSEEK = "deepseek"
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>..`: DeepSeek-V3.1.
    In V3, NAME follows `function<｜tool▁sep｜>`, and the arguments are a Markdown block of JSON."""
    GEMMA = "gemma"
    """`<|tool_call>call:NAME{K:V}<tool_call|>`, strings between `<|"|>`: Gemma 4."""
    HARMONY = "harmony"
    """Messages in channels, of which calls are some: gpt-oss. Only where each of `CHANNEL_MARKERS` is a token."""


@dataclass(frozen=True, slots=True)
class Markers:
    """The texts that open and close a span. `label`: the text after the first, which is not part of the span."""

    begin: str
    end: str
    label: str = ""


CHANNEL_MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
"""Markers of the messages of an answer in channels."""
CHANNEL_TURN_ENDS = ("<|return|>", "<|call|>")
"""Of these, those after which the model waits."""

_REASONING = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<|channel>", "<channel|>", "thought"),
)
_SIGNS = (
    ("<arg_key>", CallForm.GLM),
    ("<minimax:tool_call>", CallForm.MINIMAX),
    ("<parameter=", CallForm.QWEN_XML),
    ("<｜tool▁calls▁begin｜>", CallForm.DEEPSEEK),
    ("<|tool_call>", CallForm.GEMMA),
    ("<tool_call>", CallForm.HERMES),
    ("[TOOL_CALLS]", CallForm.MISTRAL),
    ("<|python_tag|>", CallForm.LLAMA),
    ('"parameters": ', CallForm.LLAMA),  # templates of Llama 3.2, which know the tag by its name only
)
_MARKERS = {
    CallForm.HERMES: ("<tool_call>", "</tool_call>"),
    CallForm.LLAMA: ("<|python_tag|>",),
    CallForm.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    CallForm.GLM: tuple(f"<{slash}{tag}>" for tag in ("tool_call", "arg_key", "arg_value") for slash in ("", "/")),
    CallForm.MINIMAX: ("<minimax:tool_call>", "</minimax:tool_call>"),
    CallForm.QWEN_XML: ("<tool_call>", "</tool_call>"),
    CallForm.DEEPSEEK: (
        *(f"<｜tool▁{what}▁{place}｜>" for what in ("calls", "call") for place in ("begin", "end")),
        "<｜tool▁sep｜>",
    ),
    CallForm.GEMMA: ("<|tool_call>", "<tool_call|>", '<|"|>'),
    CallForm.HARMONY: CHANNEL_MARKERS,
}
_TURN_ENDS = {CallForm.HARMONY: CHANNEL_TURN_ENDS, CallForm.GEMMA: ("<|tool_response>",)}
"""Markers after which the model waits. Gemma 4 ends calls by the one that precedes their results."""
_PROMPT_END_TOKENS = 16
"""Tokens at the end of a prompt within which an opening marker is looked for, as it may be several tokens."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`knows_tools`: the chat template renders tools. `takes_system`: it accepts a system message.
    `takes_parallel_calls`: it accepts several calls in one message. `reasoning`: the markers of reasoning, or None;
    `reasoning_ids`: their token ids, if each is one token. `marker_ids`: special tokens that are markers, kept in an
    answer's text. `turn_ends`: tokens that end an answer, besides those of the checkpoint."""

    knows_tools: bool = False
    takes_system: bool = True
    takes_parallel_calls: bool = True
    call_form: CallForm = CallForm.HERMES
    reasoning: Markers | None = None
    reasoning_ids: tuple[int, int] | None = None
    marker_ids: frozenset[int] = frozenset()
    turn_ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate | None) -> "Dialect":
        """The dialect of a tokenizer and its chat template."""
        source = "" if template is None else template.source + (template.tool_source or "")
        knows_tools = template is not None and template.knows_tools
        channels = "<|channel|>" in source and all(marker in tokenizer.special_texts for marker in CHANNEL_MARKERS)
        form = _call_form(tokenizer, source) if knows_tools else CallForm.HERMES
        form = CallForm.HARMONY if channels else form
        reasoning = next((pair for pair in _REASONING if _writes(pair, tokenizer, source)), None)
        markers = _MARKERS[form] if reasoning is None else (*_MARKERS[form], reasoning.begin, reasoning.end)
        special = tokenizer.special_texts
        marker_ids = frozenset(special[marker] for marker in markers if marker in special)
        takes_system = template is None or template.takes_system
        reasoning_ids = None if reasoning is None else _ids_of(reasoning, tokenizer)
        parallel = template is None or template.takes_parallel_calls
        turn_ends = tuple(special[marker] for marker in _TURN_ENDS.get(form, ()) if marker in special)
        return cls(knows_tools, takes_system, parallel, form, reasoning, reasoning_ids, marker_ids, turn_ends)

    @property
    def writes_channels(self) -> bool:
        """Whether an answer consists of messages in channels."""
        return self.call_form is CallForm.HARMONY

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
            label=self.reasoning.label,
        )

    def reasons_already(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends inside reasoning that the template has opened."""
        if self.reasoning is None:
            return False
        end = b"".join(map(tokenizer.token_bytes, prompt[-_PROMPT_END_TOKENS:])).rstrip()
        begin, label = self.reasoning.begin, self.reasoning.label
        return end.endswith((begin.encode(), (begin + label).encode()))


def _call_form(tokenizer: Tokenizer, source: str) -> CallForm:
    """The form by the template, else by the vocabulary, which may be a base model's with another form."""
    by_template = (form for sign, form in _SIGNS if sign in source)
    by_vocabulary = (form for sign, form in _SIGNS if tokenizer.token_of(sign) is not None)
    return next(by_template, None) or next(by_vocabulary, CallForm.HERMES)


def _writes(markers: Markers, tokenizer: Tokenizer, source: str) -> bool:
    return _ids_of(markers, tokenizer) is not None or (markers.begin in source and markers.end in source)


def _ids_of(markers: Markers, tokenizer: Tokenizer) -> tuple[int, int] | None:
    begin, end = tokenizer.token_of(markers.begin), tokenizer.token_of(markers.end)
    return None if begin is None or end is None else (begin, end)
