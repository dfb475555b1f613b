"""Text to token ids and back with Hugging Face's `tokenizers`; user text never becomes special tokens."""

import json
import re
import secrets
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import PreTokenizer

from engine.text.least_tokens import LeastTokens, TooManyTokens
from engine.text.leftmost_merges import LeftmostMerges
from engine.text.literals import any_of
from engine.text.pieces import PieceTable, UnsupportedTokenizer, alphabet_of

MAX_BYTES_PER_CHAR = 4
"""Maximum UTF-8 bytes of a character. A token has at least one byte."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A vocabulary with its encoding and decoding. Immutable after construction; thread-safe.

    Special tokens (`special_ids`) separate the template's structure from user text. `encode` never returns one for
    characters of the text. `encode_template` does, for text that a chat template rendered.

    For the latter each special token has a carrier: an added token with an unguessable text. Genuine special tokens in
    rendered text are replaced by their carriers, the text is encoded like any other, and the carriers' ids are replaced
    by the special ones. So there is one encoding pass, with the tokenizer's own treatment of text after a special token
    (SentencePiece's prefix space, stripping).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_ids: Iterable[int],
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        unk_token_id: int | None = None,
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        merges: LeftmostMerges | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Takes ownership of `backend`. Special ids must be added tokens of it.

        `prefix_ids`, `suffix_ids`: what `add_special_tokens` puts around a text (BOS, seldom EOS). `merges`: applied
        before the backend's. `vocab_size`: as the attribute; None: found in a copy of the vocabulary.

        Raises:
            UnsupportedTokenizer: the alphabet is unknown, or a special token is too long.
        """
        self.special_ids = frozenset(special_ids)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        """Tokens that end a text, the model's primary one first."""
        self._prefix = list(prefix_ids)
        self._suffix = list(suffix_ids)
        if vocab_size is None:
            vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocab_size = vocab_size
        """Largest id that has a token, plus one. A model's output layer may be padded beyond it."""
        added = backend.get_added_tokens_decoder()
        self.special_texts = {added[token_id].content: token_id for token_id in sorted(self.special_ids)}
        alphabet = alphabet_of(backend)
        contents = {token_id: token.content for token_id, token in added.items()}
        self.strips_space = alphabet.strips_space
        self._backend = backend
        self._contents, self._alphabet, self._added = contents, alphabet, list(added.values())
        self.pieces = self.pieces_without(())
        self.visible_pieces = self.pieces_without(self.special_ids)
        # The unknown token may stand for a character that the vocabulary lacks: it says nothing about who typed it.
        self._never_typed = self.special_ids - {unk_token_id}
        try:
            self._special_pattern = re.compile(any_of(self.special_texts))
        except ValueError as error:
            raise UnsupportedTokenizer(f"special token {error}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._nonce = secrets.token_hex(8)
        self._carriers = self._add_carriers(added)
        self._special_of_carrier = {backend.token_to_id(text): special for special, text in self._carriers.items()}
        self._merges = merges
        self._spec: str | None = None
        """The backend serialised without `merges`, which cannot be."""
        if merges is not None:
            self._spec = backend.to_str()
            backend.pre_tokenizer = PreTokenizer.custom(merges)

    def _add_carriers(self, added: Mapping[int, AddedToken]) -> dict[int, str]:
        carriers = {token_id: f"\ue000{self._nonce}{token_id:x}\ue001" for token_id in sorted(self.special_ids)}
        self._backend.add_tokens(
            [
                AddedToken(text, normalized=False, lstrip=added[token_id].lstrip, rstrip=added[token_id].rstrip)
                for token_id, text in carriers.items()
            ]
        )
        return carriers

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def token_of(self, text: str) -> int | None:
        """The token, special or not, with exactly this text; None if there is none."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id

    def is_valid(self, token_id: int) -> bool:
        """Whether the id is in the vocabulary."""
        return 0 <= token_id < self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool, most_tokens: int | None = None) -> list[int]:
        """Token ids of plain text. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.

        Raises:
            TooManyTokens: the lower bound of the token count exceeds `most_tokens`. (A text may have more tokens than
                that and pass.)
        """
        self._require_at_most(most_tokens, text)
        ids = self._encode_literally(text)
        return self._prefix + ids + self._suffix if add_special_tokens else ids

    def encode_template(self, rendered: str, *, mark: str = "", most_tokens: int | None = None) -> list[int]:
        """Token ids of rendered text. Special tokens in it are genuine unless they contain `mark`.

        `mark`: a character that occurs nowhere else in the text; removed before encoding.

        Raises:
            TooManyTokens: as `encode`.
        """
        self._require_at_most(most_tokens, rendered, mark)
        text = self._special_pattern.sub(lambda match: self._carriers[self.special_texts[match[0]]], rendered)
        ids = self._encode_literally(text.replace(mark, "") if mark else text)
        return [self._special_of_carrier.get(token_id, token_id) for token_id in ids]

    def least_tokens(self, text: str) -> int:
        """A lower bound of the token count, in the time of a few passes over the text; 0 if there is no bound.

        A special token, typed or genuine, counts as a line break: at most one token, separate from the text around it.
        """
        return 0 if self._least is None else self._least(self._special_pattern.sub("\n", text))

    @cached_property
    def _least(self) -> LeastTokens | None:
        """Built for the first long text, as it scans the whole vocabulary."""
        # `merges` lose no text, and nothing but them can look into them.
        backend = self._backend if self._spec is None else Backend.from_str(self._spec)
        return LeastTokens.of(backend, self._alphabet.to_bytes, self._added, self.special_texts)

    def _require_at_most(self, most_tokens: int | None, text: str, mark: str = "") -> None:
        if most_tokens is None or MAX_BYTES_PER_CHAR * len(text) <= most_tokens:
            return
        least = self.least_tokens(text.replace(mark, "") if mark else text)
        if least > most_tokens:
            raise TooManyTokens(least)

    def _encode_literally(self, text: str) -> list[int]:
        try:
            ids = self._library_ids(text)
        except TypeError:
            text = _LONE_SURROGATE.sub("\ufffd", text)
            ids = self._library_ids(text)
        return ids if self._never_typed.isdisjoint(ids) else self._encode_in_pieces(text)

    def _encode_in_pieces(self, text: str) -> list[int]:
        """For a vocabulary whose merges spell a special token: cut the text after the first character of each.

        The rest of a cut token may get SentencePiece's prefix space; a special token of a single character is dropped.
        """
        cuts = [0, *(match.start() + 1 for match in self._special_pattern.finditer(text)), len(text)]
        ids = (self._library_ids(text[start:end]) for start, end in pairwise(cuts))
        return [token_id for piece in ids for token_id in piece if token_id not in self._never_typed]

    def _library_ids(self, text: str) -> list[int]:
        """Uses the batch call: only that releases the GIL, and it tracks no offsets."""
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def pieces_without(self, silent: Container[int]) -> Mapping[int, bytes]:
        """The bytes of each token, except for `silent` ones."""
        return PieceTable(self._backend, self.vocab_size, self._contents, self._alphabet, silent)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids. Invalid UTF-8 becomes U+FFFD; ids without a token are skipped."""
        pieces = self.visible_pieces if skip_special_tokens else self.pieces
        text = b"".join(map(pieces.__getitem__, token_ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token, possibly part of a character. A special token yields its text."""
        return self.pieces[token_id]

    def shares_with(self, other: "Tokenizer") -> bool:
        """Whether both use the same backend, so that ids mean the same in both."""
        return self._backend is other._backend

    def sharing(self, other: "Tokenizer") -> "Tokenizer | None":
        """The same tokenizer on another's backend; None if the other tokenises differently or has other special tokens.
        Prefix, suffix and end tokens remain its own."""
        if (self.vocab_size, self.special_texts) != (other.vocab_size, other.special_texts):
            return None
        if self._merges != other._merges or self._form() != other._form():
            return None
        shared = copy(self)
        shared._backend, shared._contents = other._backend, other._contents
        shared._nonce, shared._carriers = other._nonce, other._carriers
        shared._special_of_carrier = other._special_of_carrier
        shared.pieces, shared.visible_pieces = other.pieces, other.visible_pieces
        return shared

    def _form(self) -> str:
        """The serialised backend without the random part of the carriers."""
        form: str = self._spec or self._backend.to_str()
        return form.replace(self._nonce, "")

    def to_json(self) -> str:
        """The tokenizer in the format of `tokenizer.json`, for libraries with their own implementation. The format
        cannot express merges of equal scores: ids are the same, but some texts are split differently."""
        spec: dict[str, Any] = json.loads(self._spec or self._backend.to_str())
        spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] < self.vocab_size]
        return json.dumps(spec, ensure_ascii=False)
