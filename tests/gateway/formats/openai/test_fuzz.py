"""Any bytes get an answer or an envelope, never 5xx, and leave no request running.

Here with a fake engine, by hypothesis, and for a few seconds with the real one; `python -m tests.fuzz` runs for any
length of time.
"""

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.fuzz.bodies import CHAT, COMPLETIONS, FORMATTED_CHAT, bodies_of
from tests.fuzz.campaign import Campaign
from tests.fuzz.serving import serving
from tests.support.error_envelope import error_of
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated, values

FULL_EMBEDDINGS = {"model": "tiny", "input": [[1, 2], [3]], "encoding_format": "base64", "user": "ann"}
BODIES = [
    *bodies_of(CHAT),
    *bodies_of(COMPLETIONS),
    ("/v1/embeddings", FULL_EMBEDDINGS | {"service_tier": "auto"}),
    *bodies_of("/v1/tokenize"),
    *bodies_of("/v1/detokenize"),
]


def check(client: TestClient, engine, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers=JSON_HEADERS)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert error["param"] is None or isinstance(error["param"], str)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text
    assert engine.live == set()


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_bodies_that_are_mutated_are_valid(client, path, body):
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_mutated_bodies(client, engine, path, body):
    @QUICK
    @given(mutated(body))
    def run(mutant: dict) -> None:
        check(client, engine, path, as_sent(mutant))

    run()
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_any_json(client, engine, path):
    @QUICK
    @given(values)
    def run(body: object) -> None:
        check(client, engine, path, as_sent(body))

    run()


def test_damaged_bytes(client, engine):
    body = {"model": "tiny"} | FORMATTED_CHAT
    whole = orjson.dumps(body)

    @QUICK
    @given(st.integers(0, len(whole)), st.integers(0, 4), st.binary(max_size=6))
    def run(start: int, length: int, piece: bytes) -> None:
        check(client, engine, CHAT, whole[:start] + piece + whole[start + length :])

    run()
    assert client.post(CHAT, json=body).status_code == 200


def test_hostile_requests_beside_streams_of_the_real_engine(tmp_path):
    """No 5xx, every envelope right, the text of no neighbour changed, no block, slot, hold or file left over."""
    with serving(tmp_path) as served:
        campaign = Campaign(served, seed=20)

        async def run() -> None:
            await campaign.begin()
            for number in range(10):
                await campaign.round(number)
            campaign.end()

        asyncio.run(run())
    assert campaign.findings == []
    assert {200, 400, 404, None} <= campaign.statuses.keys()
