"""Log-probabilities in the API's formats: chat's, completions', and vLLM's for prompts."""

import codecs
from collections.abc import Sequence
from typing import Any

from engine.request import TokenLogprob
from engine.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""OpenAI's value for minus infinity, which JSON lacks."""


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            _chat_token(entry.token_id, entry.logprob, tokenizer)
            | {"top_logprobs": [_chat_token(top.token_id, top.logprob, tokenizer) for top in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


class LegacyLogprobs:
    """The `logprobs` of one choice of a completion, piece by piece.

    `text_offset` counts characters of the choice's text, its echoed prompt included.
    """

    def __init__(self, tokenizer: Tokenizer, alternatives: int) -> None:
        self._tokenizer = tokenizer
        self._alternatives = alternatives
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def piece(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """Format the next tokens. The entry of a text's first token is None: nothing precedes it."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return {
            "tokens": [self._label(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else _finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The most likely tokens and the chosen one."""
        top = {self._label(each.token_id): _finite(each.logprob) for each in entry.top[: self._alternatives]}
        top.setdefault(self._label(entry.token_id), _finite(entry.logprob))
        return top

    def _label(self, token_id: int) -> str:
        return token_label(self._tokenizer.token_bytes(token_id))


def prompt_logprobs(
    entries: Sequence[TokenLogprob | None], alternatives: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each position the chosen token and the most likely ones, by id. The first is None.

    `rank` is None for a chosen token that is not among the `alternatives`.
    """
    return [None if entry is None else _by_token_id(entry, alternatives, tokenizer) for entry in entries]


def _by_token_id(entry: TokenLogprob, alternatives: int, tokenizer: Tokenizer) -> dict[str, Any]:
    def entry_of(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = token_label(tokenizer.token_bytes(token_id))
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}

    top = {str(each.token_id): entry_of(*each, rank) for rank, each in enumerate(entry.top[:alternatives], start=1)}
    return {str(entry.token_id): entry_of(entry.token_id, entry.logprob, None)} | top


def token_label(token: bytes) -> str:
    """A token as text. Bytes that are not valid UTF-8 are escaped, so labels are unique."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _chat_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    token = tokenizer.token_bytes(token_id)
    return {"token": token_label(token), "logprob": _finite(logprob), "bytes": list(token)}


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
