"""A gateway without models of its own, over another gateway: the same texts, the same usage, the same bill."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import anthropic
import httpx
import openai
import pytest

from gateway.metering.event import UsageEvent
from tests.support.program import TURNPIKE, Program, running
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import events_of

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny", "qwen3")


@pytest.fixture(scope="module")
def below(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The gateway that runs the model."""
    data = tmp_path_factory.mktemp("below")
    with running(data, "--model", f"tiny={checkpoint}", "--dtype", "float32", "--kv-cache-bytes", "64MiB") as program:
        yield program


@pytest.fixture(scope="module")
def above(below: Program, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The gateway that sells it, as `big`: counted by the tokenizer; and as `plain`: without."""
    data = tmp_path_factory.mktemp("above")
    stated = f'url = "{below.url}/v1"\nmodel = "tiny"\napi_key_env = "KEY_BELOW"\n'
    prices = "[prices]\nbig = [0.1, 0.05, 0.4]\nplain = [0.1, 0.05, 0.4]\n"
    settings = f'[upstreams.big]\n{stated}tokenizer = "{checkpoint}"\n[upstreams.plain]\n{stated}{prices}'
    (data / "turnpike.toml").write_text(settings)
    # Commands read the settings, too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_BELOW", below.key)
        with running(data) as program:
            yield program


def client_of(program: Program) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{program.url}/v1", api_key=program.key, max_retries=0)


def bills_of(program: Program) -> list[UsageEvent]:
    """All usage events of a gateway."""
    return events_of(SimpleNamespace(path=program.data_dir / "usage" / "journal.db"))


@pytest.mark.parametrize("model", ["big", "plain"])
def test_a_chat_is_the_same_from_both(below: Program, above: Program, model: str) -> None:
    with client_of(below) as local, client_of(above) as remote:
        ours = local.chat.completions.create(model="tiny", messages=QUESTION, **GREEDY)
        theirs = remote.chat.completions.create(model=model, messages=QUESTION, **GREEDY)
        assert theirs.choices[0].message.content == ours.choices[0].message.content
        assert theirs.choices[0].finish_reason == ours.choices[0].finish_reason
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert getattr(theirs.usage, name) == getattr(ours.usage, name)
        stream = remote.chat.completions.create(
            model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ours.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == ours.usage.completion_tokens


def test_the_bill_is_that_of_the_server(below: Program, above: Program) -> None:
    """Each request is billed once by both, by the same tokens at the same price."""
    before = len(bills_of(below)), len(bills_of(above))
    with client_of(above) as remote:
        for tokens in (1, 5, 9):
            remote.chat.completions.create(model="plain", messages=QUESTION, temperature=0, max_tokens=tokens)
    local, sold = bills_of(below)[before[0] :], bills_of(above)[before[1] :]
    assert len(local) == len(sold) == 3
    for mine, other in zip(local, sold, strict=True):
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nanodollars", "finish_reason"):
            assert getattr(mine, name) == getattr(other, name), name
    assert [event.completion_tokens for event in sold] == [1, 5, 9]
    assert {event.served_model for event in sold} == {"plain"}


def test_a_client_that_hangs_up_is_billed_the_same_by_both(below: Program, above: Program) -> None:
    with client_of(above) as remote:
        stream = remote.chat.completions.create(
            model="big", messages=QUESTION, stream=True, max_tokens=200, extra_body={"ignore_eos": True}
        )
        for _, _ in zip(range(20), stream, strict=False):
            pass
        stream.close()
    below.wait_idle()
    deadline = time.monotonic() + 30
    while (sold := bills_of(above)[-1]).finish_reason != "cancelled":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert sold.completion_tokens >= 15
    assert sold.prompt_tokens == bills_of(below)[-1].prompt_tokens
    assert bills_of(below)[-1].finish_reason == "cancelled"


def test_a_completion_with_logprobs_is_the_same(below: Program, above: Program) -> None:
    asked = {"prompt": ["Once upon", "The sea"], "logprobs": 2, "n": 2, **GREEDY}
    with client_of(below) as local, client_of(above) as remote:
        ours = local.completions.create(model="tiny", **asked)
        theirs = remote.completions.create(model="big", **asked)
    assert [choice.text for choice in theirs.choices] == [choice.text for choice in ours.choices]
    for mine, other in zip(ours.choices, theirs.choices, strict=True):
        assert other.logprobs.tokens == mine.logprobs.tokens
        assert other.logprobs.token_logprobs == pytest.approx(mine.logprobs.token_logprobs, abs=1e-4)
        assert other.logprobs.text_offset == mine.logprobs.text_offset
    assert theirs.usage.total_tokens == ours.usage.total_tokens


def test_a_constrained_answer(below: Program, above: Program) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with client_of(below) as local, client_of(above) as remote:
        asked = {"messages": QUESTION, "response_format": form, **GREEDY}
        ours = local.chat.completions.create(model="tiny", **asked)
        theirs = remote.chat.completions.create(model="big", **asked)
    assert theirs.choices[0].message.content == ours.choices[0].message.content
    assert json.loads(theirs.choices[0].message.content)["a"] in ("x", "y")


def test_a_forced_call(below: Program, above: Program) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    asked = {"messages": QUESTION, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, **GREEDY}
    with client_of(above) as remote:
        answer = remote.chat.completions.create(model="big", **(asked | {"max_tokens": 64}))
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    assert answer.choices[0].finish_reason == "tool_calls"


def test_an_anthropic_message(above: Program) -> None:
    with anthropic.Anthropic(base_url=above.url, api_key=above.key, max_retries=0) as client:
        counted = client.messages.count_tokens(model="big", messages=QUESTION)
        answer = client.messages.create(model="big", max_tokens=8, messages=QUESTION)
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted.input_tokens
    assert answer.usage.output_tokens <= 8


def test_tokens_are_counted_by_the_models_tokenizer(below: Program, above: Program) -> None:
    body = {"prompt": "The sea is wide."}
    ours, theirs = (
        httpx.post(
            f"{program.url}/v1/tokenize",
            json=body | {"model": model},
            headers={"authorization": f"Bearer {program.key}"},
        ).json()
        for program, model in ((below, "tiny"), (above, "big"))
    )
    assert theirs["tokens"] == ours["tokens"]


def test_the_window_is_that_of_the_server(below: Program, above: Program) -> None:
    with client_of(below) as local, client_of(above) as remote:
        window = local.models.retrieve("tiny").max_model_len
        deadline = time.monotonic() + 20
        while remote.models.retrieve("big").max_model_len != window:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_it_starts_while_the_server_is_down(tmp_path: Path) -> None:
    (tmp_path / "turnpike.toml").write_text(
        '[upstreams.big]\nurl = "http://127.0.0.1:9/v1"\n[prices]\nbig = [0.1, 0.05, 0.4]\n'
    )
    with running(tmp_path) as program:
        assert httpx.get(f"{program.url}/readyz").status_code == 200
        with client_of(program) as client, pytest.raises(openai.InternalServerError) as raised:
            client.chat.completions.create(model="big", messages=QUESTION)
        assert raised.value.status_code in (502, 503)
        assert not _has_torch(program.process.pid)


def _has_torch(pid: int) -> bool:
    """Whether torch's library is loaded."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_the_log_has_no_key_and_no_line_for_each_request_to_the_server(below: Program, above: Program) -> None:
    log = above.log.read_text()
    assert below.key not in log
    assert "HTTP Request" not in log


def test_the_settings_of_the_readme(below: Program, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (stated,) = [block for block in re.findall(r"```toml\n(.*?)```", readme, re.DOTALL) if "[upstreams." in block]
    stated = stated.replace("http://vllm:8000", below.url).replace("Qwen/Qwen3-32B", "tiny")
    (tmp_path / "turnpike.toml").write_text(stated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_KEY", below.key)
        with running(tmp_path) as program:
            assert "ok        upstream big: tiny at" in _doctor(program)
            with client_of(program) as client:
                assert client.chat.completions.create(model="big", messages=QUESTION, max_tokens=4).usage.total_tokens


def _doctor(program: Program) -> str:
    """Its report; other findings than that of the upstream are up to the machine."""
    command = [TURNPIKE, "doctor", "--data-dir", str(program.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
