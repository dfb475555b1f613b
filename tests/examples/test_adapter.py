"""The example that trains an adapter, on a tiny random model: data, tokens, files."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import httpx
import jsonschema
import openai
import pytest
from starlette.testclient import TestClient

pytest.importorskip("peft", reason="peft is not installed")

from engine.adapters.checker import facts_of
from engine.checkpoints.checkpoint import open_checkpoint
from examples.adapter.evaluate import ANSWER_TOKENS, SCHEMA, contenders, score, worked_examples
from examples.adapter.messages import FIELDS, correct_fields, messages, with_examples
from examples.adapter.templates import TEMPLATES
from examples.adapter.train import Recipe, example_of, load_base, save, train
from tests.support.gateway import AUTHORISED, KEY
from tests.support.tiny_app import tiny_app
from tests.support.tiny_models import make_checkpoint

TRAINING, TESTS = messages("train", 2000), messages("test", 1000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(tiny_app(tmp_path), headers=AUTHORISED) as client:
        yield client


def test_training_and_tests_share_no_sentence_and_no_value() -> None:
    train_set, test_set = TEMPLATES["train"], TEMPLATES["test"]
    for field in ("order", "city", "amount", "date", "remarks", "cities"):
        assert not set(getattr(train_set, field)) & set(getattr(test_set, field))
    for one, other in combinations([*train_set.cities, *test_set.cities], 2):
        assert one not in other
        assert other not in one
    assert not {each.order.order for each in TRAINING} & {each.order.order for each in TESTS}


def test_a_message_states_its_fields_and_its_answer_is_right() -> None:
    for message in (*TRAINING, *TESTS):
        order = message.order
        assert message.text.count(order.order) == 1
        assert order.city is None or order.city in message.text
        assert order.amount_cents is None or str(order.amount_cents // 100) in message.text
        assert order.day is None or str(order.day.year) in message.text
        assert json.loads(order.answer) == order.fields
        assert correct_fields(order.answer, order) == dict.fromkeys(FIELDS, True)


def test_the_same_seed_gives_the_same_messages() -> None:
    assert messages("train", 20, seed=3) == messages("train", 20, seed=3) != messages("train", 20, seed=4)


def test_fields_left_out_are_null() -> None:
    absent = sum(each.order.city is None for each in TRAINING) / len(TRAINING)
    assert 0.15 < absent < 0.25


@pytest.mark.parametrize(
    ("edit", "wrong"),
    [
        (lambda answer: f"Sure:\n```json\n{answer}\n```", []),
        (lambda answer: answer.replace('"order":"', '"order":"X'), ["order"]),
        (lambda answer: answer.removesuffix("}"), FIELDS),
        (lambda answer: "[1]", FIELDS),
        (lambda answer: "{}", FIELDS),
        (lambda answer: answer.replace('"amount":', '"amount":1'), ["amount"]),
    ],
)
def test_marks(edit, wrong) -> None:
    order = next(each.order for each in TESTS if each.order.amount_cents)
    marks = correct_fields(edit(order.answer), order)
    assert [name for name, right in marks.items() if not right] == list(wrong)


def test_an_amount_as_a_string_is_right_and_a_guess_for_a_missing_one_is_not() -> None:
    stated = next(each.order for each in TESTS if each.order.amount_cents)
    absent = next(each.order for each in TESTS if each.order.amount_cents is None)
    assert correct_fields(json.dumps(stated.fields | {"amount": str(stated.fields["amount"])}), stated)["amount"]
    assert not correct_fields(json.dumps(absent.fields | {"amount": 0.0}), absent)["amount"]


def test_training_sees_the_token_ids_that_the_chat_endpoint_makes(client: TestClient, tmp_path: Path) -> None:
    text = open_checkpoint(tmp_path).text_processor()
    message = TRAINING[0]
    example = example_of(message, text)
    body = {"model": "tiny", "messages": message.conversation, "max_tokens": 1, "return_token_ids": True}
    served = client.post("/v1/chat/completions", json=body).json()
    assert served["prompt_token_ids"] == list(example.token_ids[: example.prompt_tokens])
    answer = example.token_ids[example.prompt_tokens :]
    assert answer[-1] in text.tokenizer.eos_token_ids
    assert text.decode(answer[:-1]) == message.order.answer


def test_a_few_steps_make_an_adapter_that_the_checker_accepts(tiny: Path, tmp_path: Path) -> None:
    text = open_checkpoint(tiny).text_processor()
    recipe = Recipe(rank=4, steps=6, batch=2, learning_rate=2e-2)
    losses: list[float] = []
    model = train(load_base(tiny), text, recipe, lambda step, loss: losses.append(loss))
    save(model, tmp_path)
    assert len(losses) == recipe.steps
    assert losses[-1] < losses[0]
    facts = facts_of(tmp_path, tiny, max_rank=64, max_bytes=1 << 24)
    assert facts.rank == recipe.rank
    assert len(facts.targets) == len(recipe.targets)


def test_scores_are_taken_through_the_gateway(client: TestClient) -> None:
    """A random model gets nothing right."""

    async def ask() -> None:
        transport = httpx.ASGITransport(client.app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
            openai.AsyncOpenAI(base_url="http://test/v1", api_key=KEY, http_client=http) as sdk,
        ):
            ours = contenders("tiny")[-1]
            scored = await score(sdk, ours, TESTS[:2], 2)
        assert scored.whole == 0
        assert scored.fields == dict.fromkeys(FIELDS, 0)
        assert scored.prompt_tokens > 100

    client.portal.call(ask)


def test_the_base_model_gets_the_same_instruction_and_more_help() -> None:
    base, held, shown, _, adapter = contenders("mine")
    message = TESTS[0]
    assert base.request(message) == adapter.request(message) | {"model": "smollm2"}
    assert held.request(message)["response_format"]["json_schema"]["schema"] == SCHEMA
    assert held.request(message)["messages"] == message.conversation
    assert shown.request(message)["messages"] == with_examples(message, worked_examples())
    roles = [turn["role"] for turn in shown.request(message)["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert base.request(message)["max_tokens"] == ANSWER_TOKENS


def test_the_schema_takes_every_right_answer_and_no_other_form() -> None:
    for message in TESTS:
        jsonschema.validate(message.order.fields, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(TESTS[0].order.fields | {"date": "31. January"}, SCHEMA)
