"""Valid bodies with something replaced, removed or added."""

import json
from collections.abc import Callable

import orjson
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

JSON_HEADERS = {"content-type": "application/json"}

# The client and the engine are shared by a test's examples on purpose: a fault may show only later.
QUICK = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, -1, 5, 2**31, 2**53])
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "user", "text", "function", "tiny", "\0", "\ud83d\ude42", "\ud800", "TEMPLATE-REFUSES", "{}", "[" * 100]
    )
)

values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def mutated(draw: Callable, body: dict) -> dict:
    """A valid body with one to three places replaced, removed or added to."""
    body = orjson.loads(orjson.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        place = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 3)) == 0:
                del place[key]
            else:
                place[key] = draw(values)
            break
        if isinstance(place, dict) and draw(st.integers(0, 3)) == 0:
            place[draw(st.sampled_from(["prompt", "messages", "tools", "x"]) | st.text(max_size=8))] = draw(values)
    return body


def as_sent(body: object) -> bytes:
    """With what JSON does not allow and Python writes: NaN, infinities, halves of surrogate pairs."""
    return json.dumps(body).encode()
