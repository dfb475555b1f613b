"""Text on one side, token ids on the other: all that a served model does with text.

Runs on the event-loop side; the engine thread sees token ids only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.text.chat_template import ChatTemplate
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A model's tokenizer and chat template (None where the checkpoint has none)."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of plain text. Special tokens typed in `text` are text; BOS goes in front where the model has it so."""
        ...

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation rendered by the chat template. Message contents never become special tokens.

        Raises:
            ChatTemplateError: there is no template, or it refuses these messages.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer: ...
