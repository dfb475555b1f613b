"""Incremental detokenisation with stop strings: each character is emitted as soon as it is final."""

import codecs
from collections.abc import Mapping, Sequence

from engine.text.stop_strings import StopMatcher
from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Converts one choice's token ids to text as they arrive.

    The concatenation of everything pushed and flushed is `Tokenizer.decode` of all ids, cut at the start of the first
    stop string, or with `include_stop` at its end. Characters are emitted whole: the bytes of an incomplete one wait
    for the next token, and U+FFFD is emitted only for bytes that no further byte can complete. Which stop string wins
    is `StopMatcher`'s rule; it does not depend on how ids are grouped into pushes or text into tokens.

    `continues_text`: the ids continue a visible text, so the leading space of the first token is kept (dropped by
    default if the tokenizer adds one to every text). `pieces`: bytes of each token; by default special tokens have
    none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        pieces: Mapping[int, bytes] | None = None,
        include_stop: bool = False,
        continues_text: bool = False,
    ) -> None:
        self._pieces = tokenizer.visible_pieces if pieces is None else pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._strip_space = tokenizer.strips_space and not continues_text
        self._stops = StopMatcher(stop, include=include_stop) if stop else None
        self.consumed_tokens = 0
        """Tokens counted as output: all pushed ones, up to and including the one that completed a stop string."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. Tokens pushed after it are dropped."""
        return self._stops.matched if self._stops else None

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make final."""
        if self._stops is None:
            self.consumed_tokens += len(token_ids)
            return self._text(b"".join(map(self._pieces.__getitem__, token_ids)))
        shown = []
        for token_id in token_ids:
            if self._stops.matched is not None:
                break
            self.consumed_tokens += 1
            shown.append(self._stops.feed(self._text(self._pieces[token_id])))
        return "".join(shown)

    def flush(self) -> str:
        """The remaining text at the end of the ids: held text, and U+FFFD for an incomplete character."""
        rest = self._text(b"", final=True)
        if self._stops is None:
            return rest
        return self._stops.feed(rest) + self._stops.release()

    def _text(self, data: bytes, *, final: bool = False) -> str:
        text = self._decode(data, final)
        if self._strip_space and text:
            self._strip_space = False
            text = text.removeprefix(" ")
        return text
