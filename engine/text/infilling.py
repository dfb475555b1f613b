"""Fill-in-the-middle (FIM): generating the text between a prefix and a suffix.

The prompt is prefix, suffix, middle, each after a token of its own ("PSM" of Bavarian et al. 2022, Efficient Training
of Language Models to Fill in the Middle); the answer is the text of the gap. A model supports it if its vocabulary has
these tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from engine.text.tokenizer import Tokenizer

_FAMILIES = (
    (
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    (
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"),
    ),
    (("▁<PRE>", "▁<SUF>", "▁<MID>"), ("▁<EOT>",)),
)
"""Qwen-Coder and CodeGemma, StarCoder, CodeLlama: the three FIM tokens, and tokens that end the middle."""

_LEAD = "☺"
"""Absorbs the space that SentencePiece puts in front of a text, so that a suffix is encoded without one."""


@dataclass(frozen=True, slots=True)
class Infilling:
    """The FIM tokens of a model. `ends`: tokens that end the middle."""

    tokenizer: Tokenizer
    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """The FIM tokens of a tokenizer; None if it has none."""
        for own, others in _FAMILIES:
            prefix, suffix, middle = map(tokenizer.token_of, own)
            if prefix is not None and suffix is not None and middle is not None:
                more = (tokenizer.token_of(text) for text in others)
                ends = (prefix, suffix, middle, *(token for token in more if token is not None))
                return cls(tokenizer, prefix, suffix, middle, ends)
        return None

    def encode(
        self, before: str, behind: str, *, add_special_tokens: bool = True, most_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a prompt for the text between `before` and `behind`, with BOS in front where the model has it.

        Raises:
            TooManyTokens: as `Tokenizer.encode`, for one of the texts.
        """
        tokenizer = self.tokenizer
        around = tokenizer.encode("", add_special_tokens=add_special_tokens)
        begin = [token for token in around[:1] if token == tokenizer.bos_token_id]
        text = tokenizer.encode(before, add_special_tokens=False, most_tokens=most_tokens)
        return [*begin, self.prefix, *text, self.suffix, *self._as_it_stands(behind, most_tokens), self.middle]

    def _as_it_stands(self, text: str, most_tokens: int | None) -> Sequence[int]:
        if not self.tokenizer.strips_space:
            return self.tokenizer.encode(text, add_special_tokens=False, most_tokens=most_tokens)
        lead = self.tokenizer.encode(_LEAD, add_special_tokens=False)
        ids = self.tokenizer.encode(_LEAD + text, add_special_tokens=False, most_tokens=most_tokens)
        return ids[len(lead) :] if ids[: len(lead)] == lead else self.tokenizer.encode(text, add_special_tokens=False)
