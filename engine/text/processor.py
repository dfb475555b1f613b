"""Text on one side, token ids on the other: all that a served model does with text.

Runs on the event-loop side; the engine thread sees token ids only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from engine.text.typed_specials import TypedSpecials

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A model's tokenizer and chat template (None where the checkpoint has none)."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    _typed: TypedSpecials = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_typed", TypedSpecials(self.tokenizer.special_texts))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of plain text. Special tokens typed in `text` are text; BOS goes in front where the model has it so."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation rendered by the chat template. Message contents never become special tokens.

        `variables` are the template's own: `tools`, `documents`, `enable_thinking` and the like. They are data
        as messages are. BOS is the template's business: nothing is added around what it renders.

        Raises:
            ChatTemplateError: there is no template, or it refuses these messages.
        """
        if self.chat_template is None:
            raise ChatTemplateError("this model has no chat template")
        conversation = {"messages": self.chat_template.prepare(messages), **variables}
        try:
            data, mark = self._typed.guard(conversation, apart_from=self.chat_template.source)
        except (ValueError, RecursionError) as error:
            raise ChatTemplateError(str(error)) from error
        rendered = self.chat_template.render_prepared(**data, add_generation_prompt=add_generation_prompt)
        return self.tokenizer.encode_template(rendered, mark=mark)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def detokenizer(
        self, stop: Sequence[str] = (), *, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> Detokenizer:
        """For one choice. `continues_text`: its text goes behind the prompt's (a completion, not an answer)."""
        return Detokenizer(self.tokenizer, stop, skip_special_tokens=skip_special_tokens, continues_text=continues_text)
