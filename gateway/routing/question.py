"""What of a request says how hard it is, before any model has read it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request as the complexity score sees it: characters, not tokens, which need a model's tokenizer.

    `text` is all that users wrote, one turn below another, the newest last. `turns` counts the messages of users and
    of the assistant. `max_tokens` is the length that the client asked for, None where it named none.
    """

    text: str
    turns: int = 1
    system_chars: int = 0
    has_tools: bool = False
    has_schema: bool = False
    max_tokens: int | None = None
