"""Bodies of /v1/responses, and what the model is shown of them."""

from tests.support.fake_engine import FakeEngine

PATH = "/v1/responses"

OPENING = "<assistant>"


def body(said: object = "Where?", **fields) -> dict:
    return {"model": "tiny", "input": said} | fields


def shown(engine: FakeEngine) -> str:
    """The last prompt, up to where the answer begins."""
    prompt = bytes(engine.calls[-1].prompt[1:]).decode()
    assert prompt.endswith(OPENING)
    return prompt.removesuffix(OPENING)
