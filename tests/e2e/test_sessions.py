"""Sessions of the running program, through the official client."""

import httpx
import openai

from tests.support.program import Program

GREEDY = {"temperature": 0, "max_tokens": 24}
BLOCK_TOKENS = 16


def say(client: openai.OpenAI, text: str, session: str, model: str = "smollm2"):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], extra_body={"session_id": session}, **GREEDY
    )


def test_a_session_answers_as_if_all_messages_had_been_sent(client: openai.OpenAI) -> None:
    messages: list[dict] = []
    for text in ("What is the capital of France?", "And of Italy?", "Which one is larger?"):
        messages.append({"role": "user", "content": text})
        remembered = say(client, text, "equal")
        sent = client.chat.completions.create(model="smollm2", messages=messages, **GREEDY)
        assert remembered.choices[0].message.content == sent.choices[0].message.content
        assert remembered.usage.prompt_tokens == sent.usage.prompt_tokens
        messages.append({"role": "assistant", "content": sent.choices[0].message.content})


def test_a_following_turn_hits_the_prefix_cache(client: openai.OpenAI) -> None:
    """All of the last turn's prompt that fills whole blocks, and what was answered as well."""
    computed_before = 0
    for number in range(5):
        usage = say(client, f"Tell me something about the number {number}.", "cached").usage
        assert usage.prompt_tokens_details.cached_tokens >= computed_before - 2 * BLOCK_TOKENS
        computed_before = usage.total_tokens
    assert computed_before > 6 * BLOCK_TOKENS


def test_a_session_is_read_and_deleted_by_its_tenant_alone(program: Program, client: openai.OpenAI) -> None:
    say(client, "My name is Ann.", "mine")
    program.command("tenant", "create", "nosy", "--tier", "standard")
    other = program.command("key", "create", "--tenant", "nosy")
    url = f"{program.url}/v1/sessions/mine"
    assert httpx.get(url, headers={"authorization": f"Bearer {other}"}).status_code == 404
    mine = {"authorization": f"Bearer {program.key}"}
    assert httpx.get(url, headers=mine).json()["messages"][0]["content"] == "My name is Ann."
    assert httpx.delete(url, headers=mine).json()["deleted"] is True
    assert httpx.get(url, headers=mine).status_code == 404


def test_a_session_outgrows_its_window_and_goes_on(program: Program, client: openai.OpenAI) -> None:
    """The tiny model's window takes a few turns; each one after that is answered, too."""
    for number in range(12):
        response = client.chat.completions.with_raw_response.create(
            model="tiny",
            messages=[{"role": "user", "content": f"{number} " + "and on and on " * 10}],
            extra_body={"session_id": "long"},
            temperature=0,
            max_tokens=4,
        )
    assert int(response.headers["x-turnpike-session-dropped-turns"]) > 2
    assert int(response.headers["x-turnpike-session-turns"]) > 0
    program.wait_idle()


def test_no_message_of_a_session_is_in_the_log(program: Program, client: openai.OpenAI) -> None:
    say(client, "an unlikely sentence", "logged", model="tiny")
    assert "unlikely" not in program.log.read_text()
