"""Spoils valid bodies: drops, retypes, nests, enlarges, swaps values. All chance comes from the `Random` given."""

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 5, 17, 129, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *(
        "",
        " ",
        "x",
        "\0",
        "\ud800",
        "é🙂",
        "tiny",
        "user",
        "text",
        "function",
        "default",
        "none",
        "auto",
        "{}",
        "[" * 100,
    ),
    *([], {}, [None], [[]], {"": None}, {"$ref": "#"}, {"a": 1}, [1, "a"]),
]
NAMES = [
    *("model", "messages", "prompt", "tools", "tool_choice", "best_of", "echo", "suffix", "stop", "seed", "user", "x"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "response_format"),
    *(
        "continue_final_message",
        "add_generation_prompt",
        "service_tier",
        "session_id",
        "chat_template",
        "store",
        "priority",
    ),
    *("__class__", "type", "content", "role", "name", "refusal", "$ref", "pattern", "minLength", "maxItems", "not"),
]
MAX_ENLARGED = 300_000
"""Characters of a string: more than the server's bound of a body would be the same refusal each time."""


class Place(NamedTuple):
    """A value's place in a body."""

    container: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.container[self.key]

    @value.setter
    def value(self, value: Any) -> None:
        self.container[self.key] = value


def mutated(body: dict[str, Any], random: Random) -> dict[str, Any]:
    """A copy with one to three places spoilt."""
    body = copy.deepcopy(body)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(body))
        if places:
            random.choice(_MUTATIONS)(random, random.choice(places), places)
    return body


def damaged(body: bytes, random: Random) -> bytes:
    """With a few bytes cut out, put in or turned."""
    start = random.randrange(len(body))
    piece = random.choice((b"", b"\xff", b"\0", b'"', b"\\", b"{", b"]", b",", random.randbytes(4)))
    return body[:start] + piece + body[start + random.choice((0, 1, 4)) :]


def as_sent(body: Any) -> bytes:
    """With what JSON does not allow and Python writes: NaN, infinities, halves of surrogate pairs."""
    return json.dumps(body).encode()


def _places(value: Any) -> Iterator[Place]:
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield Place(value, key)
        yield from _places(value[key])


def _drop(random: Random, place: Place, places: list[Place]) -> None:
    del place.container[place.key]


def _retype(random: Random, place: Place, places: list[Place]) -> None:
    others = [value for value in STRANGE if type(value) is not type(place.value)]
    place.value = copy.deepcopy(random.choice(others))


def _replace(random: Random, place: Place, places: list[Place]) -> None:
    place.value = copy.deepcopy(random.choice(STRANGE))


def _nest(random: Random, place: Place, places: list[Place]) -> None:
    for _ in range(random.choice((1, 1, 2, 10, 100))):
        place.value = [place.value] if random.random() < 0.5 else {random.choice(NAMES): place.value}


def _enlarge(random: Random, place: Place, places: list[Place]) -> None:
    factor = random.choice((2, 10, 300, 3000))
    match place.value:
        case str() as text:
            place.value = (text or "x") * min(factor, MAX_ENLARGED // (len(text) or 1))
        case list() as items:
            place.value = [copy.deepcopy(item) for item in items for _ in range(min(factor, 300))]
        case dict() as members:
            members.update({f"k{i}": copy.deepcopy(random.choice(STRANGE)) for i in range(factor)})
        case bool() | None:
            place.value = [place.value] * factor
        case number:
            place.value = number * factor


def _swap(random: Random, place: Place, places: list[Place]) -> None:
    other = random.choice(places)
    place.value, other.value = copy.deepcopy(other.value), copy.deepcopy(place.value)


def _add(random: Random, place: Place, places: list[Place]) -> None:
    if isinstance(place.container, dict):
        place.container[random.choice(NAMES)] = copy.deepcopy(random.choice((place.value, random.choice(STRANGE))))
    else:
        place.container.insert(place.key, copy.deepcopy(random.choice(STRANGE)))


Mutation = Callable[[Random, Place, list[Place]], None]
_MUTATIONS: list[Mutation] = [_drop, _retype, _replace, _nest, _enlarge, _swap, _add]
