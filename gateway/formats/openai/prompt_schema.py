"""Parses prompts in OpenAI's four forms: a string, strings, token ids, arrays of token ids."""

from typing import cast

from gateway.formats.openai.sampling import MAX_TOKEN_ID
from gateway.generation.request import Prompt
from gateway.http.fields import array_too_long, as_integer, empty_array, missing, wrong_type


def plain_prompts(value: object, path: str, most: int) -> tuple[Prompt, ...]:
    """A string, an array of strings, an array of token ids, or an array of such arrays: at most `most` of them.

    Raises:
        APIError: another type, no prompt, or too many.
    """
    if value is None:
        raise missing(path)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    if not value:
        raise empty_array(path)
    if type(value[0]) is int:
        return (token_ids(value, path),)
    if len(value) > most:
        raise array_too_long(path, most, len(value))
    return tuple(_one(item, f"{path}[{i}]", type(value[0])) for i, item in enumerate(value))


def _one(item: object, path: str, kind: type[object]) -> Prompt:
    """One item of an array whose items all have the type `kind`."""
    if kind is str and isinstance(item, str):
        return item
    if kind is not str and isinstance(item, list):
        return token_ids(item, path)
    raise wrong_type(path, "a string" if kind is str else "an array of token ids", item)


def token_ids(items: list[object], path: str) -> tuple[int, ...]:
    """Non-negative token ids. The model's vocabulary size is checked once the model is known."""
    if not items:
        raise empty_array(path)
    ids = cast(list[int], items)
    if set(map(type, items)) != {int} or not 0 <= min(ids) <= max(ids) <= MAX_TOKEN_ID:
        for i, item in enumerate(items):  # find the invalid item
            if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
                as_integer(item, f"{path}[{i}]", 0, MAX_TOKEN_ID)
    return tuple(ids)
