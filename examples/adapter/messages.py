"""Customers' messages about orders, drawn from templates, and the fields to extract from them."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from examples.adapter.templates import TEMPLATES, Split, Templates

INSTRUCTION = (
    'Extract from the message, as one JSON object and nothing else: {"order": the order number, "city": the city of '
    'delivery, "amount": euros paid, "date": date of the order as YYYY-MM-DD}. Write null for what is not stated.'
)
FIELDS = ("order", "city", "amount", "date")

_ABSENT = 0.2
"""Probability that a message leaves out the city, the amount or the date, each."""
_TEST_MULTIPLE = 7
"""Order numbers that are multiples of it occur in tests alone."""
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
_FIRST_DAY, _DAYS = date(2024, 1, 1), 1400


@dataclass(frozen=True, slots=True)
class Order:
    """The fields of a message. None: the message does not state it."""

    order: str
    city: str | None
    amount_cents: int | None
    day: date | None

    @property
    def fields(self) -> dict[str, Any]:
        """The values as JSON has them."""
        amount = None if self.amount_cents is None else self.amount_cents / 100
        return {"order": self.order, "city": self.city, "amount": amount, "date": self.day and self.day.isoformat()}

    @property
    def answer(self) -> str:
        """Compact JSON, the amount with two decimals."""
        members = {name: json.dumps(value, ensure_ascii=False) for name, value in self.fields.items()}
        if self.amount_cents is not None:
            members["amount"] = f"{self.amount_cents / 100:.2f}"
        return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message and what it says."""

    text: str
    order: Order

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The request: the same for every model that is compared."""
        return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": self.text}]


def messages(split: Split, count: int, seed: int = 0) -> list[Message]:
    """`count` messages; the same seed gives the same ones."""
    draws = random.Random(f"{split} {seed}")
    return [_message(split, draws) for _ in range(count)]


def with_examples(message: Message, examples: Sequence[Message]) -> list[dict[str, str]]:
    """The request with worked examples, as earlier turns of the conversation."""
    first, last = message.conversation
    turns = [
        turn
        for example in examples
        for turn in (example.conversation[-1], {"role": "assistant", "content": example.order.answer})
    ]
    return [first, *turns, last]


def correct_fields(answer: str, order: Order) -> Mapping[str, bool]:
    """By field, whether an answer states it. Text around the JSON object, and an amount as a string, are excused."""
    begin, end = answer.find("{"), answer.rfind("}") + 1
    try:
        found = json.loads(answer[begin:end])
    except ValueError:
        found = {}
    if not isinstance(found, dict):
        found = {}
    return {name: name in found and _same(found[name], value) for name, value in order.fields.items()}


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        try:
            return abs(float(found) - expected) < 0.005
        except (TypeError, ValueError):
            return False
    return bool(found == expected)


def _message(split: Split, draws: random.Random) -> Message:
    templates = TEMPLATES[split]
    order = Order(
        order=_order_number(split, draws),
        city=draws.choice(templates.cities),
        amount_cents=draws.choice((draws.randrange(500, 100_000), 100 * draws.randrange(5, 900))),
        day=_FIRST_DAY + timedelta(days=draws.randrange(_DAYS)),
    )
    order = Order(order.order, *(None if draws.random() < _ABSENT else each for each in _optional(order)))
    sentences = _sentences(templates, order, draws)
    draws.shuffle(sentences)
    return Message(" ".join(filter(None, [draws.choice(templates.greetings), *sentences])), order)


def _optional(order: Order) -> tuple[Any, Any, Any]:
    return order.city, order.amount_cents, order.day


def _order_number(split: Split, draws: random.Random) -> str:
    while True:
        number = draws.randrange(10_000, 100_000)
        if (number % _TEST_MULTIPLE == 0) == (split == "test"):
            return f"{draws.choice(_LETTERS)}{draws.choice(_LETTERS)}-{number}"


def _sentences(templates: Templates, order: Order, draws: random.Random) -> list[str]:
    said = [draws.choice(templates.order).format(order=order.order)]
    if order.city is not None:
        said.append(draws.choice(templates.city).format(city=order.city))
    if order.amount_cents is not None:
        said.append(draws.choice(templates.amount).format(amount=_written_amount(order.amount_cents, draws)))
    if order.day is not None:
        said.append(draws.choice(templates.date).format(date=_written_date(order.day, draws)))
    for remark in draws.sample(templates.remarks, draws.randrange(3)):
        said.append(remark.format(number=draws.randrange(100_000, 10_000_000)))
    return said


def _written_amount(cents: int, draws: random.Random) -> str:
    number = str(cents // 100) if cents % 100 == 0 and draws.random() < 0.5 else f"{cents / 100:.2f}"
    return draws.choice(("€{}", "{} €", "{} EUR", "EUR {}", "{} euros")).format(number)


def _written_date(day: date, draws: random.Random) -> str:
    month = day.strftime("%B")
    forms = (
        day.isoformat(),
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{day.day}. {month} {day.year}",
        f"{month[:3]} {day.day} {day.year}",
    )
    return draws.choice(forms)
