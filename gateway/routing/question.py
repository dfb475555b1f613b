"""The input of the complexity score: what of a request indicates its difficulty before a model reads it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request as the complexity score reads it. Lengths are in characters, as tokens would need a model's
    tokenizer.

    `text`: the text of all user messages, one per line, the newest last. `turns`: number of user and assistant
    messages. `max_tokens`: the client's limit for the answer; None: not stated.
    """

    text: str
    turns: int = 1
    system_chars: int = 0
    has_tools: bool = False
    has_schema: bool = False
    max_tokens: int | None = None
