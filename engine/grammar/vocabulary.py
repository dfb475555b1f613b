"""A model's vocabulary in the form that llguidance takes."""

from dataclasses import dataclass

from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LibraryVocabulary:
    """`vocab_size` is the width of the model's logits, which may exceed the number of tokens."""

    tokenizer_json: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> "LibraryVocabulary":
        return cls(tokenizer.to_json(), vocab_size, eos_token_ids)
