"""Text to token ids and back, with one rule on top of Hugging Face's `tokenizers`: typed text is only text."""

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
"""Of UTF-8. A token has at least one."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A vocabulary, its encoding and its decoding. Immutable after construction; safe to use from threads.

    Special tokens (`special_ids`) separate what the model's owner says from what a user types. `encode` never
    returns one for characters of the text. `encode_template` does, for text that a chat template rendered.

    How the latter works: beside each special token stands a carrier, an added token with an unguessable text of
    its own. Rendered text has its genuine special tokens replaced by their carriers, is encoded like any other
    text, and the carriers' ids are swapped for the special ones. So there is one encoding pass, with the
    tokenizer's own treatment of what follows a special token (SentencePiece's prefix space, stripping).
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
    ) -> None:
        """`backend` is taken over. Special ids must be added tokens of it.

        `prefix_ids` and `suffix_ids` are what `add_special_tokens` puts around a text (BOS, seldom EOS). `merges` come
        before the backend's.

        Raises:
            UnsupportedTokenizer: the alphabet is not understood, or a special token is absurdly long.
        """
        self.special_ids = frozenset(special_ids)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        """Tokens that end a text, the model's principal one first."""
        self._prefix = list(prefix_ids)
        self._suffix = list(suffix_ids)
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the largest id that has a token; a model's output layer may be padded beyond it."""
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
        """The backend's form without `merges`, which have none."""
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
        """The one token, special or not, that stands for this text."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id

    def is_valid(self, token_id: int) -> bool:
        return 0 <= token_id < self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool, most_tokens: int | None = None) -> list[int]:
        """Ids of plain text. Lone surrogates, which no UTF-8 can carry, count as U+FFFD.

        Raises:
            TooManyTokens: there are more than `most_tokens`, and that is known without tokenising it. (A text with
                more of which that is not known is returned.)
        """
        self._require_at_most(most_tokens, text)
        ids = self._encode_literally(text)
        return self._prefix + ids + self._suffix if add_special_tokens else ids

    def encode_template(self, rendered: str, *, mark: str = "", most_tokens: int | None = None) -> list[int]:
        """Ids of rendered text in which special tokens are genuine, but for those with `mark` inside.

        `mark` is one character that occurs nowhere else in the text; it is taken out of what is encoded.

        Raises:
            TooManyTokens: as `encode`.
        """
        self._require_at_most(most_tokens, rendered, mark)
        text = self._special_pattern.sub(lambda match: self._carriers[self.special_texts[match[0]]], rendered)
        ids = self._encode_literally(text.replace(mark, "") if mark else text)
        return [self._special_of_carrier.get(token_id, token_id) for token_id in ids]

    def least_tokens(self, text: str) -> int:
        """How many tokens there are at least, in time that a few passes over the text take; 0 where nothing is known.

        Special tokens in it, typed or genuine, count as a line break: as no more than one token, and they are apart
        from what is around them.
        """
        return 0 if self._least is None else self._least(self._special_pattern.sub("\n", text))

    @cached_property
    def _least(self) -> LeastTokens | None:
        """Made for the first long text: it takes a look at the whole vocabulary."""
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
        """For a vocabulary whose merges spell a special token: cut after the first character of each in the text.

        The rest of a cut token may get SentencePiece's prefix space; a special token of a single character has
        no spelling left and is dropped.
        """
        cuts = [0, *(match.start() + 1 for match in self._special_pattern.finditer(text)), len(text)]
        ids = (self._library_ids(text[start:end]) for start, end in pairwise(cuts))
        return [token_id for piece in ids for token_id in piece if token_id not in self._never_typed]

    def _library_ids(self, text: str) -> list[int]:
        """Through the call for batches: alone of all it lets other Python threads run, and it tracks no offsets."""
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def pieces_without(self, silent: Container[int]) -> Mapping[int, bytes]:
        """The bytes of each token, for a text in which these say nothing."""
        return PieceTable(self._backend, self.vocab_size, self._contents, self._alphabet, silent)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids. Invalid UTF-8 becomes U+FFFD; ids without a token have no text."""
        pieces = self.visible_pieces if skip_special_tokens else self.pieces
        text = b"".join(map(pieces.__getitem__, token_ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly what a token stands for: maybe part of a character. A special token stands for its text."""
        return self.pieces[token_id]

    def shares_with(self, other: "Tokenizer") -> bool:
        """Whether the two are on the same memory, so that each id says the same in both."""
        return self._backend is other._backend

    def sharing(self, other: "Tokenizer") -> "Tokenizer | None":
        """The same tokenizer on another's memory; None where the other takes texts apart in another way, or has other
        special tokens. What stands around a text and what ends one stay its own."""
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
        """All that the backend does, and the carriers but for what is random of them."""
        form: str = self._spec or self._backend.to_str()
        return form.replace(self._nonce, "")

    def to_json(self) -> str:
        """The tokenizer in `tokenizer.json`'s form, for libraries that bring their own copy. Merges of equal scores
        have no place in it: the same ids, and texts taken apart in another way here and there."""
        spec: dict[str, Any] = json.loads(self._spec or self._backend.to_str())
        spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] < self.vocab_size]
        return json.dumps(spec, ensure_ascii=False)
