"""Compares an adapter with its base model through a gateway: `python -m examples.adapter.evaluate NAME`.

Greedy answers to the same messages, which have no sentence and no city in common with those of training. The base model
gets the adapter's instruction; and the same with answers that are held to a schema, with two worked examples, or both.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from examples.adapter.messages import FIELDS, Message, correct_fields, messages, with_examples

BASE = "smollm2"
ANSWER_TOKENS = 80
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "maxLength": 12},
        "city": {"type": ["string", "null"], "maxLength": 40},
        "amount": {"type": ["number", "null"]},
        "date": {"anyOf": [{"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}, {"type": "null"}]},
    },
    "required": list(FIELDS),
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Contender:
    """A model and the help that its requests give it. `examples`: worked ones in the prompt."""

    label: str
    model: str
    examples: Sequence[Message] = ()
    held_to_schema: bool = False

    def request(self, message: Message) -> dict[str, Any]:
        """The body of the chat request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": with_examples(message, self.examples),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
        }
        if self.held_to_schema:
            named = {"name": "order", "strict": True, "schema": SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of right answers. `whole`: all fields right. `prompt_tokens`: the mean."""

    fields: Mapping[str, float]
    whole: float
    prompt_tokens: float


def contenders(adapter: str) -> list[Contender]:
    """The base model with more and more help, then the adapter with none."""
    examples = worked_examples()
    return [
        Contender("base model", BASE),
        Contender("base model, schema", BASE, held_to_schema=True),
        Contender("base model, 2 examples", BASE, examples),
        Contender("base model, 2 examples, schema", BASE, examples, held_to_schema=True),
        Contender("adapter", adapter),
    ]


def worked_examples() -> list[Message]:
    """Of the messages for training, one that does not state the date, then one that states every field."""
    drawn = messages("train", 100, seed=1)
    partial = next(each for each in drawn if [name for name in FIELDS if each.order.fields[name] is None] == ["date"])
    return [partial, next(each for each in drawn if None not in each.order.fields.values())]


async def score(client: AsyncOpenAI, contender: Contender, tests: Sequence[Message], concurrency: int) -> Score:
    """Ask all messages, `concurrency` at a time."""
    free = asyncio.Semaphore(concurrency)

    async def ask(message: Message) -> tuple[Mapping[str, bool], int]:
        async with free:
            answer = await client.chat.completions.create(**contender.request(message))
        return correct_fields(answer.choices[0].message.content or "", message.order), answer.usage.prompt_tokens

    answered = await asyncio.gather(*(ask(message) for message in tests))
    count = len(answered)
    return Score(
        fields={name: sum(right[name] for right, _ in answered) / count for name in FIELDS},
        whole=sum(all(right.values()) for right, _ in answered) / count,
        prompt_tokens=sum(tokens for _, tokens in answered) / count,
    )


async def compare(url: str, key: str, adapter: str, count: int, concurrency: int) -> None:
    """Print the table."""
    tests = messages("test", count)
    print(f"{count} messages\n| | all fields | {' | '.join(FIELDS)} | prompt tokens |")
    print("|---|" + "---|" * (len(FIELDS) + 2))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        for contender in contenders(adapter):
            scored = await score(client, contender, tests, concurrency)
            shares = [scored.whole, *scored.fields.values()]
            cells = [f"{100 * share:.1f} %" for share in shares] + [f"{scored.prompt_tokens:.0f}"]
            print(f"| {contender.label} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Compare on a gateway; its key is in TURNPIKE_KEY."""
    parser = argparse.ArgumentParser(description="Accuracy of an adapter and of its base model, through a gateway.")
    parser.add_argument("adapter", help="the name that requests state as model")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=8)
    given = parser.parse_args()
    key = os.environ["TURNPIKE_KEY"]
    asyncio.run(compare(given.url, key, given.adapter, given.messages, given.concurrency))


if __name__ == "__main__":
    main()
