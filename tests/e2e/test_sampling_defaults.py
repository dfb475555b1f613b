"""The first question of the README, asked without sampling parameters: the shipped model answers it every time."""

import anthropic
import openai
import pytest

from tests.support.program import Program

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
TIMES = 10


def by_chat(client: openai.OpenAI) -> str:
    return str(
        client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=24).choices[0].message.content
    )


def by_responses(client: openai.OpenAI) -> str:
    return client.responses.create(model="smollm2", input=QUESTION, max_output_tokens=24).output_text


def by_completions(client: openai.OpenAI) -> str:
    return client.completions.create(model="smollm2", prompt="The capital of France is").choices[0].text


@pytest.mark.parametrize("ask", [by_chat, by_responses, by_completions])
def test_openai_clients_get_the_answer(client: openai.OpenAI, ask) -> None:
    answers = [ask(client) for _ in range(TIMES)]
    assert ["Paris" in answer for answer in answers] == [True] * TIMES, answers


def test_anthropic_clients_get_the_answer(program: Program) -> None:
    with anthropic.Anthropic(base_url=program.url, api_key=program.key) as client:
        asked = {"model": "smollm2", "max_tokens": 24, "messages": MESSAGES}
        answers = [client.messages.create(**asked).content[0].text for _ in range(TIMES)]
    assert ["Paris" in answer for answer in answers] == [True] * TIMES, answers


def test_the_list_of_models_says_so(client: openai.OpenAI) -> None:
    shown = client.models.retrieve("smollm2").model_dump()["default_parameters"]
    assert (shown["temperature"], shown["top_p"]) == (0.2, 0.4)
