"""Checks that one model can draft for another: equal token ids must stand for equal bytes."""

from typing import NamedTuple

from engine.models.config import UnsupportedCheckpoint
from engine.text.tokenizer import Tokenizer


class VocabularyMismatch(UnsupportedCheckpoint):
    """The vocabularies of the draft and the target model differ."""


class Vocabulary(NamedTuple):
    """A model's vocabulary. `size`: the number of logits, which may exceed the tokenizer's number of tokens."""

    model: str
    size: int
    tokenizer: Tokenizer


def check_same_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Check that each token id stands for the same bytes in both. O(tokens), or O(1) where they share a tokenizer.

    Raises:
        VocabularyMismatch: they differ; the message has the first difference.
    """
    refusal = f"{draft.model} cannot draft for {target.model}: their vocabularies differ"
    ours, theirs = target.tokenizer, draft.tokenizer
    for size, its_size in ((target.size, draft.size), (ours.vocab_size, theirs.vocab_size)):
        if size != its_size:
            raise VocabularyMismatch(f"{refusal} in size, {its_size} against {size} tokens")
    if ours.shares_with(theirs):
        return
    for token in range(ours.vocab_size):
        text, its_text = ours.token_bytes(token), theirs.token_bytes(token)
        if text != its_text:
            raise VocabularyMismatch(f"{refusal}, token {token} is {its_text!r} against {text!r}")
