"""Text of a growing list of token ids, as early as it is final, with stop strings."""

import codecs
from collections.abc import Mapping, Sequence

from engine.text.stop_strings import StopMatcher
from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns one choice's token ids into text while they arrive.

    Everything pushed and flushed, put together, is `Tokenizer.decode` of all the ids, cut where the first stop
    string begins, or with `include_stop` where it ends. A character is shown whole or not at all: bytes of an
    unfinished one wait for the next token, and U+FFFD comes out only for bytes that no further byte can make valid.
    Which stop string wins is `StopMatcher`'s rule and does not depend on how the ids were cut into pushes or the text
    into tokens.

    `continues_text`: the ids continue a text that the reader has in front of them, so the space that starts the
    first token is kept (it is dropped by default where the tokenizer puts one in front of every text). `pieces`: what
    each token says; special tokens say nothing by default.
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
        """Tokens that count: all that were pushed, up to and including the one that completed a stop string."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did. What is pushed after it is dropped."""
        return self._stops.matched if self._stops else None

    def push(self, token_ids: Sequence[int]) -> str:
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
        """The rest, when no more tokens will follow: held text, and U+FFFD for an unfinished character."""
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
