"""Filling in the middle: a model that was trained for it is given what stands before a gap and behind it.

The prompt is prefix, suffix, middle, each behind a token of its own (Bavarian et al. 2022, "PSM"), and the answer is
what stands in the gap. A vocabulary with these tokens is a model's that knows them.
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
"""Qwen-coder and CodeGemma, StarCoder, CodeLlama: the three tokens, and those with which something else begins."""

_LEAD = "☺"
"""Takes the space that SentencePiece puts in front of a text, so that a suffix begins as it stands."""


@dataclass(frozen=True, slots=True)
class Infilling:
    """How one model does it. `ends` are the tokens behind which nothing more belongs into the gap."""

    tokenizer: Tokenizer
    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """None: the vocabulary has no tokens for it."""
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
        """Ids of a prompt that asks for what stands between two texts; BOS goes in front where the model has it so.

        Raises:
            TooManyTokens: as `Tokenizer.encode`, of one of the texts.
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
