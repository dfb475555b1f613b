"""Log-probabilities of an upstream's answer: chat's form, and that of completions."""

from collections.abc import Mapping
from typing import Any

from engine.request import Alternative, TokenLogprob
from gateway.generation.remote_prompt import token_for

_ESCAPED = "bytes:"


def read_logprobs(stated: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    """An entry for each token of a chunk, with ids that contain the tokens' text.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is malformed.
    """
    if not stated:
        return ()
    if "content" in stated:
        return tuple(
            TokenLogprob(*_token(entry), tuple(Alternative(*_token(top)) for top in entry.get("top_logprobs") or ()))
            for entry in stated["content"] or ()
        )
    tokens, values = stated.get("tokens") or (), stated.get("token_logprobs") or ()
    tops = stated.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(
            token_for(_bytes_of(token)),
            _number(value),
            tuple(Alternative(token_for(_bytes_of(label)), _number(each)) for label, each in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def _token(entry: Mapping[str, Any]) -> tuple[int, float]:
    label = entry.get("bytes")
    return token_for(_bytes_of(entry["token"]) if label is None else bytes(label)), _number(entry["logprob"])


def _bytes_of(label: str) -> bytes:
    """The bytes of a token. Those that are not UTF-8 are escaped, as in `bytes:\\xe2\\x82`."""
    if label.startswith(_ESCAPED + "\\x"):
        return bytes.fromhex(label.removeprefix(_ESCAPED).replace("\\x", ""))
    return label.encode(errors="replace")


def _number(value: Any) -> float:
    return float("-inf") if value is None else float(value)
