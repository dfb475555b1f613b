"""Messages and counts by names that stand for models."""

import pytest

from tests.gateway.api.test_routing import EASY, HARD, app, engine

__all__ = ["app", "engine"]


@pytest.mark.parametrize(("text", "served"), [(EASY, "small"), (HARD, "big")])
def test_auto_is_answered_by_the_model_that_it_takes(client, text, served):
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    response = client.post("/v1/messages", json=body | {"max_tokens": 50})
    assert response.headers["x-turnpike-requested-model"] == "auto"
    assert response.headers["x-turnpike-served-model"] == response.json()["model"] == served
    assert response.json()["content"] == [{"type": "text", "text": f"from {served}"}]
    count = client.post("/v1/messages/count_tokens", json=body)
    assert count.json() == {"input_tokens": len(f"B<user>{text}\n<assistant>")}
