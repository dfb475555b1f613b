"""`client.responses` against the running program."""

import openai
from pydantic import BaseModel, Field

from tests.support.program import Program

QUESTION = "What is the capital of France?"
GREEDY = {"model": "smollm2", "temperature": 0, "max_output_tokens": 24}


class Place(BaseModel):
    city: str = Field(max_length=30)
    is_capital: bool


def test_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(input=QUESTION, **GREEDY)
    assert whole.output_text == "The capital of France is Paris."
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (37, 8)
    with client.responses.stream(input=QUESTION, **GREEDY) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_what_is_stored_is_gone_on_from_as_if_all_had_been_sent(client: openai.OpenAI) -> None:
    first = client.responses.create(input=QUESTION, **GREEDY)
    remembered = client.responses.create(input="And of Italy?", previous_response_id=first.id, **GREEDY)
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And of Italy?"},
    ]
    chat = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=24)
    assert remembered.output_text == chat.choices[0].message.content
    assert remembered.usage.input_tokens == chat.usage.prompt_tokens


def test_parse(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(text_format=Place, input=QUESTION, **GREEDY | {"max_output_tokens": 80})
    assert parsed.output_parsed.city


def test_nothing_of_it_is_in_the_log(program: Program, client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="an improbable sentence", max_output_tokens=2)
    client.responses.create(model="tiny", input="more", previous_response_id=first.id, max_output_tokens=2)
    assert "improbable" not in program.log.read_text()
    program.wait_idle()
