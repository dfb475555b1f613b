"""All conversions between text and token ids of a served model.

Used on the event loop's side; the engine thread sees token ids only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.text.chat_template import ChatTemplate, ChatTemplateError, ending_in
from engine.text.detokenizer import Detokenizer
from engine.text.dialect import Dialect
from engine.text.infilling import Infilling
from engine.text.tokenizer import Tokenizer
from engine.text.typed_specials import TypedSpecials, strings_of, unused_character

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """A model's tokenizer and chat template (None if the checkpoint has none). `infilling`: None if the model does not
    support it."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    dialect: Dialect = field(init=False, repr=False, compare=False)
    infilling: Infilling | None = field(init=False, repr=False, compare=False)
    _typed: TypedSpecials = field(init=False, repr=False, compare=False)
    _pieces: Mapping[int, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        dialect = Dialect.of(tokenizer, self.chat_template)
        object.__setattr__(self, "dialect", dialect)
        object.__setattr__(self, "infilling", Infilling.of(tokenizer))
        object.__setattr__(self, "_typed", TypedSpecials(tokenizer.special_texts))
        object.__setattr__(self, "_pieces", tokenizer.pieces_without(tokenizer.special_ids - dialect.marker_ids))

    def sharing(self, other: "TextProcessor") -> "TextProcessor":
        """The same processor on the memory of the other's tokenizer, if both are equal."""
        tokenizer = self.tokenizer.sharing(other.tokenizer)
        return self if tokenizer is None else replace(self, tokenizer=tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None) -> list[int]:
        """Token ids of plain text. Special tokens typed in `text` are encoded as text; BOS is added where the model has
        it.

        Raises:
            TooManyTokens: as `Tokenizer.encode`.
        """
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens, most_tokens=most_tokens)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        most_tokens: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation rendered by the chat template. Message contents never become special tokens.

        `variables`: the template's own, such as `tools`, `documents` or `enable_thinking`; treated as data like
        messages. BOS is up to the template; nothing is added. `continue_final_message`: the prompt ends at the end of
        the last message's text, so that the model continues it; excludes `add_generation_prompt`.

        Raises:
            ChatTemplateError: there is no template, or it rejects these messages.
            TooManyTokens: as `Tokenizer.encode`, for the rendered text.
        """
        if self.chat_template is None:
            raise ChatTemplateError("this model has no chat template")
        source, end = self.chat_template.source, ""
        conversation: dict[str, Any] = {"messages": self.chat_template.prepare(messages), **variables}
        try:
            if continue_final_message:
                end = unused_character([source, *strings_of(conversation)])
                conversation["messages"][-1] = ending_in(conversation["messages"][-1], end)
            data, mark = self._typed.guard(conversation, apart_from=source)
        except (ValueError, RecursionError) as error:
            raise ChatTemplateError(str(error)) from error
        rendered = self.chat_template.render_prepared(**data, add_generation_prompt=add_generation_prompt)
        if continue_final_message:
            rendered, found, _ = rendered.rpartition(end)
            if not found:
                raise ChatTemplateError("the chat template does not end in the last message's text")
        return self.tokenizer.encode_template(rendered, mark=mark, most_tokens=most_tokens)

    def template_reads(self, variable: str) -> bool:
        """Whether the rendered text may depend on a variable of this name."""
        return self.chat_template is not None and variable in self.chat_template.variables

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids: see `Tokenizer.decode`."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def detokenizer(
        self,
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        keep_markers: bool = False,
        include_stop: bool = False,
        continues_text: bool = False,
    ) -> Detokenizer:
        """A detokenizer for one choice. `continues_text`: the output is appended to the prompt's text (a
        completion)."""
        pieces = self.tokenizer.pieces
        if skip_special_tokens:
            pieces = self._pieces if keep_markers else self.tokenizer.visible_pieces
        return Detokenizer(
            self.tokenizer, stop, pieces=pieces, include_stop=include_stop, continues_text=continues_text
        )
