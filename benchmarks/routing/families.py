"""The families of questions. Each function makes one question of a grade; `subject` is what must not be asked twice."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.routing import tables

Turn = tuple[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Item:
    """`rule`, `answer` and `among` as `gateway.routing.fitting.graders.Check` has them."""

    messages: tuple[Turn, ...]
    subject: str
    rule: str
    answer: str
    among: tuple[str, ...] = ()
    max_tokens: int = 40


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    make: Callable[[random.Random, int], Item]
    grades: int


def _ask(text: str) -> tuple[Turn, ...]:
    return (("user", text),)


def _level(levels: Sequence[_T], grade: int) -> _T:
    return levels[min(grade, len(levels)) - 1]


def capital(rng: random.Random, grade: int) -> Item:
    country, city = rng.choice(_level(tables.CAPITALS, grade))
    form = rng.choice(
        ("What is the capital of {}?", "Name the capital city of {}.", "Which city is the capital of {}?")
    )
    return Item(_ask(form.format(country)), country, "says", city, max_tokens=24)


def opposite(rng: random.Random, grade: int) -> Item:
    word, other = rng.choice(_level(tables.OPPOSITES, grade))
    form = rng.choice(
        ("What is the opposite of {}?", "Give the opposite of the word {}.", 'What is an antonym of "{}"?')
    )
    return Item(_ask(form.format(word)), word, "says", other, max_tokens=24)


def fact(rng: random.Random, grade: int) -> Item:
    question, answer = rng.choice(_level(tables.FACTS, grade))
    ending = rng.choice(("", "", " Answer with one word.", " Be brief."))
    return Item(_ask(question + ending), question, "says", answer)


def proverb(rng: random.Random, grade: int) -> Item:
    start, end = rng.choice(tables.PROVERBS)
    form = rng.choice(
        ('Complete the proverb: "{} ..."', "Finish this saying: {} ...", "How does this proverb end? {} ...")
    )
    return Item(_ask(form.format(start)), start, "says", end, max_tokens=32)


def plural(rng: random.Random, grade: int) -> Item:
    word, answer = rng.choice(_level(tables.PLURALS, grade))
    form = rng.choice(("What is the plural of {}?", "Write the plural of the word {}.", "One {}, two what?"))
    return Item(_ask(form.format(word)), word, "says", answer, max_tokens=24)


def past(rng: random.Random, grade: int) -> Item:
    word, answer = rng.choice(_level(tables.PAST, grade))
    form = rng.choice(
        ("What is the past tense of {}?", 'Put the verb "{}" into the simple past.', "Today I {}. Yesterday I")
    )
    return Item(_ask(form.format(word)), word, "says", answer, max_tokens=32)


def copying(rng: random.Random, grade: int) -> Item:
    sentence = _sentence(rng, grade)
    form = rng.choice(("Repeat exactly: {}", "Copy this sentence: {}", 'Say "{}" and nothing else.'))
    return Item(_ask(form.format(sentence)), sentence, "says", sentence, max_tokens=48)


def figures(rng: random.Random, grade: int) -> Item:
    """Copying what means nothing: a code in which every character counts."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    code = "-".join("".join(rng.choices(letters, k=4)) for _ in range(grade))
    form = rng.choice(("Repeat this code: {}", "My order number is {}. What is my order number?", "Copy: {}"))
    return Item(_ask(form.format(code)), code, "literal", code)


def spelling(rng: random.Random, grade: int) -> Item:
    word = rng.choice(_level(tables.WORDS, grade))
    form = rng.choice(("Spell the word {} letter by letter.", 'Spell "{}" with hyphens between the letters.'))
    return Item(_ask(form.format(word)), word, "spells", word, max_tokens=48)


def capitals(rng: random.Random, grade: int) -> Item:
    text = rng.choice(_level(tables.WORDS, grade)) if grade < 3 else rng.choice(tables.SENTENCES[grade - 3])
    form = rng.choice(("Write this in capital letters: {}", "Turn this into upper case: {}"))
    return Item(_ask(form.format(text)), text, "literal", text.upper())


def count(rng: random.Random, grade: int) -> Item:
    if grade < 3:
        word = rng.choice(_level(tables.WORDS, grade + rng.randrange(2)))
        return Item(_ask(f"How many letters does the word {word} have?"), word, "number", str(len(word)))
    sentence = rng.choice(tables.SENTENCES[grade - 3])
    text = f"How many words are in this sentence? {sentence}."
    return Item(_ask(text), sentence, "number", str(len(sentence.split())))


def addition(rng: random.Random, grade: int) -> Item:
    low, high = ((1, 9), (10, 49), (100, 999), (1000, 99999))[grade - 1]
    left, right = rng.randint(low, high), rng.randint(low, high)
    form = rng.choice(("What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?", "{} + {} ="))
    return Item(_ask(form.format(left, right)), f"{left}+{right}", "number", str(left + right))


def subtraction(rng: random.Random, grade: int) -> Item:
    low, high = ((1, 9), (10, 99), (100, 999))[grade - 1]
    right, left = sorted((rng.randint(low, high), rng.randint(low, high)))
    form = rng.choice(("What is {} - {}?", "Take {1} from {0}.", "How much is {} minus {}?"))
    return Item(_ask(form.format(left, right)), f"{left}-{right}", "number", str(left - right))


def multiplication(rng: random.Random, grade: int) -> Item:
    low, high = ((2, 5), (6, 12), (13, 99))[grade - 1]
    left, right = rng.randint(low, high), rng.randint(2, 12 if grade < 3 else 99)
    form = rng.choice(("What is {} times {}?", "Multiply {} by {}.", "{} x {} ="))
    return Item(_ask(form.format(left, right)), f"{left}*{right}", "number", str(left * right))


def story(rng: random.Random, grade: int) -> Item:
    """A word problem of as many steps as its grade."""
    name, thing = rng.choice(tables.NAMES), rng.choice(tables.THINGS)
    have = rng.randint(2, 9) * 10 ** (grade > 2)
    text, total = f"{name} has {have} {thing}.", have
    for step in range(grade):
        amount = rng.randint(1, 9)
        if step % 2:
            amount = min(amount, total - 1)
            text += f" {name} gives {amount} of them to {rng.choice(tables.NAMES)}."
            total -= amount
        else:
            text += f" {name} {rng.choice(('buys', 'finds', 'gets'))} {amount} more."
            total += amount
    return Item(_ask(f"{text} How many {thing} does {name} have now?"), text, "number", str(total), max_tokens=64)


def larger(rng: random.Random, grade: int) -> Item:
    high = (20, 500, 99999)[grade - 1]
    left, right = rng.sample(range(1, high), 2)
    word = rng.choice(("larger", "smaller"))
    wanted, other = (max(left, right), min(left, right)) if word == "larger" else (min(left, right), max(left, right))
    text = f"Which number is {word}, {left} or {right}?"
    return Item(_ask(text), text, "chooses", str(wanted), (str(other),))


def following(rng: random.Random, grade: int) -> Item:
    if grade == 1:
        names = rng.choice((tables.DAYS, tables.MONTHS))
        place, what = rng.randrange(len(names) - 1), "day" if names is tables.DAYS else "month"
        text, answer = f"Which {what} comes after {names[place]}?", names[place + 1]
        return Item(_ask(text), text, "says", answer, max_tokens=24)
    start, step = rng.randint(1, 9), rng.randint(1, 3) if grade == 2 else rng.randint(4, 13)
    shown = [start + i * step for i in range(4)]
    text = f"Which number comes next? {', '.join(map(str, shown))}, ..."
    return Item(_ask(text), text, "says", str(start + 4 * step))


def member(rng: random.Random, grade: int) -> Item:
    kinds = rng.sample(sorted(tables.GROUPS), 2)
    if grade == 1:
        thing = rng.choice(tables.GROUPS[kinds[0]])
        shown = kinds[:]
        rng.shuffle(shown)
        text = f"Is {thing} a {shown[0]} or a {shown[1]}?"
        return Item(_ask(text), text, "chooses", kinds[0], (kinds[1],), max_tokens=24)
    odd = rng.choice(tables.GROUPS[kinds[1]])
    others = rng.sample(tables.GROUPS[kinds[0]], grade + 1)
    shown = [odd, *others]
    rng.shuffle(shown)
    text = f"Which of these is not a {kinds[0]}: {', '.join(shown)}?"
    return Item(_ask(text), text, "chooses", odd, tuple(others))


def sentiment(rng: random.Random, grade: int) -> Item:
    good = rng.random() < 0.5
    levels = (tables.PRAISE, tables.SUBTLE_PRAISE) if good else (tables.BLAME, tables.SUBTLE_BLAME)
    review = f"The {rng.choice(tables.GOODS)} {rng.choice(_level(levels, grade))}."
    form = rng.choice(
        (
            'Is this review positive or negative? "{}"',
            "Classify the sentiment as positive or negative. Answer with one word.\n{}",
        )
    )
    answer, other = ("positive", "negative") if good else ("negative", "positive")
    return Item(_ask(form.format(review)), review, "chooses", answer, (other,), max_tokens=24)


def _people(rng: random.Random, how_many: int) -> list[dict[str, str]]:
    columns = (tables.NAMES, tables.JOBS, tables.PLACES, tables.PETS)
    drawn = [rng.sample(column, how_many) for column in columns]
    return [dict(zip(("name", "job", "city", "pet"), row, strict=True)) for row in zip(*drawn, strict=True)]


def extraction(rng: random.Random, grade: int) -> Item:
    people = _people(rng, grade)
    form = "{name} is a {job} in {city} and has {pet}."
    passage = " ".join(form.format_map(person) for person in people)
    asked = rng.choice(people)
    key, question = rng.choice(
        (("city", "In which city does {} live?"), ("job", "What is the job of {}?"), ("pet", "Which pet does {} have?"))
    )
    wrong = tuple(person[key] for person in people if person is not asked)
    text = f"{passage}\n\n{question.format(asked['name'])}"
    return Item(_ask(text), text, "chooses", asked[key], wrong)


def ordering(rng: random.Random, grade: int) -> Item:
    if rng.random() < 0.5:
        numbers = rng.sample(range(1, 10 ** (1 + grade // 2)), grade + 2)
        asked, wanted = numbers, sorted(numbers)
        text = f"Sort these numbers from the smallest to the largest: {', '.join(map(str, asked))}"
        return Item(_ask(text), text, "orders", " ".join(map(str, wanted)), max_tokens=48)
    words = rng.sample(tables.WORDS[grade - 1], grade + 2)
    text = f"Put these words in alphabetical order: {', '.join(words)}"
    return Item(_ask(text), text, "orders", " ".join(sorted(words)), max_tokens=48)


def as_json(rng: random.Random, grade: int) -> Item:
    person = _people(rng, 1)[0]
    keys = ("name", "city", "job", "pet")[: grade + 1]
    facts = ", ".join(f"the {key} is {person[key]}" for key in keys)
    text = f"Write a JSON object with the keys {', '.join(keys)}: {facts}. Answer with JSON only."
    return Item(_ask(text), text, "json", json.dumps({key: person[key] for key in keys}), max_tokens=64)


def code(rng: random.Random, grade: int) -> Item:
    left, right = rng.randint(1, 9), rng.randint(1, 9)
    if grade == 1:
        text, answer = f"What does this Python print?\n```python\nprint({left} + {right})\n```", left + right
    elif grade == 2:
        text = f"What does this Python print?\n```python\na = {left}\nb = a + {right}\nprint(b)\n```"
        answer = left + right
    else:
        text = (
            f"What does this Python print?\n```python\nt = {left}\nfor i in range({right}):\n    t += i\nprint(t)\n```"
        )
        answer = left + sum(range(right))
    return Item(_ask(text), text, "number", str(answer), max_tokens=64)


def memory(rng: random.Random, grade: int) -> Item:
    """Something said in an earlier turn, asked for as many turns later as the grade says."""
    person = _people(rng, 1)[0]
    turns: list[Turn] = [
        ("user", f"Hello, my name is {person['name']} and I am a {person['job']} from {person['city']}."),
        ("assistant", f"Hello {person['name']}, nice to meet you! How can I help you?"),
    ]
    chatter = (("What colour is the sky?", "The sky is blue."), ("Name a fruit.", "An apple is a fruit."))
    for question, answer in chatter[: grade - 1]:
        turns += [("user", question), ("assistant", answer)]
    key = rng.choice(("name", "job", "city"))
    question = {"name": "What is my name?", "job": "What is my job?", "city": "Which city am I from?"}[key]
    subject = f"{person['name']} {person['job']} {person['city']} {key}"
    return Item((*turns, ("user", question)), subject, "says", person[key])


def _sentence(rng: random.Random, grade: int) -> str:
    """A sentence of the tables, one word of it changed for a name so that there are enough of them."""
    words = rng.choice(_level(tables.SENTENCES, grade)).split()
    place = rng.randrange(len(words))
    return " ".join([*words[:place], rng.choice(tables.NAMES), *words[place + 1 :]])


ALL = (
    Family("capital", capital, 3),
    Family("opposite", opposite, 2),
    Family("fact", fact, 3),
    Family("proverb", proverb, 1),
    Family("plural", plural, 3),
    Family("past", past, 3),
    Family("copying", copying, 3),
    Family("figures", figures, 4),
    Family("spelling", spelling, 4),
    Family("capitals", capitals, 4),
    Family("count", count, 4),
    Family("addition", addition, 4),
    Family("subtraction", subtraction, 3),
    Family("multiplication", multiplication, 3),
    Family("story", story, 4),
    Family("larger", larger, 3),
    Family("following", following, 3),
    Family("member", member, 3),
    Family("sentiment", sentiment, 2),
    Family("extraction", extraction, 4),
    Family("ordering", ordering, 4),
    Family("as_json", as_json, 3),
    Family("code", code, 3),
    Family("memory", memory, 3),
)
