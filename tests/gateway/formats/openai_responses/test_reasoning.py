"""A model's reasoning: an item of its own, counted, and passed back to the template when the conversation resumes."""

import pytest

from engine.text.dialect import Dialect, Markers
from tests.support.fake_engine import FakeEngine

THOUGHT = "<think>\nso\n</think>\n\n"


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine({"tiny": 4096})
    engine.models["tiny"].text.dialect = Dialect(knows_tools=True, reasoning=Markers("<think>", "</think>"))
    engine.reply = f"{THOUGHT}yes"
    return engine


def test_reasoning_is_an_item_before_the_message(ask):
    response = ask()
    thought, message = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "so"}]
    assert (thought["type"], thought["summary"], thought["status"]) == ("reasoning", [], "completed")
    assert message["content"][0]["text"] == "yes"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>\nso\n</think>")


def test_streamed_it_has_events_of_its_own(watch):
    events = watch()
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "so"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


@pytest.mark.parametrize("stored", [True, False])
def test_what_goes_on_has_it_before_the_answer_it_led_to(ask, monkeypatch, engine, stored):
    seen = []
    encode_chat = type(engine.models["tiny"].text).encode_chat

    def watched(self, messages, **given):
        seen.append(messages)
        return encode_chat(self, messages, **given)

    monkeypatch.setattr(type(engine.models["tiny"].text), "encode_chat", watched)
    first = ask("Where?")
    asked = {"role": "user", "content": "Where?"}
    more = {"role": "user", "content": "When?"}
    if stored:
        ask([more], previous_response_id=first["id"])
    else:
        ask([asked, *first["output"], more])
    answer = {"role": "assistant", "content": "yes", "reasoning_content": "so"}
    assert list(seen[-1]) == [asked, answer, more]
