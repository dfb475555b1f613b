"""Whether one model can draft for another: their token ids must mean the same."""

from typing import NamedTuple

from engine.models.config import UnsupportedCheckpoint
from engine.text.tokenizer import Tokenizer


class VocabularyMismatch(UnsupportedCheckpoint):
    """A model was to draft for one whose tokens are others."""


class Vocabulary(NamedTuple):
    """A model's tokens: `size` is how many logits it has, which may be more than its tokenizer knows."""

    model: str
    size: int
    tokenizer: Tokenizer


def check_same_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Each token id stands for the same bytes in both. O(tokens), unless the two are on the same memory.

    Raises:
        VocabularyMismatch: it does not; the message says where they differ first.
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
