"""Writes the prompts that smollm2-small learns from: `python models/prompts.py > prompts.jsonl`.

Short chat requests of kinds that a model of 135 million parameters can answer: forms filled with topics, facts, words,
numbers and small passages. Nothing is downloaded; the same count and seed always write the same lines.
Each line is {"prompt": text} or {"messages": [...]}, and no two are equal.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import prompt_words as words

DEFAULT_COUNT = 8000
DEFAULT_SEED = 1
_SYSTEM_SHARE = 0.06


def split(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", "").split("|")]


_THINGS, _ACTIVITIES = split(words.THINGS), split(words.ACTIVITIES)
_CAPITALS = [tuple(pair.split(":")) for pair in split(words.CAPITALS)]
_OPPOSITES = [tuple(pair.split(":")) for pair in split(words.OPPOSITES)]
_COLLECTIONS = {name: items.split(", ") for name, items in (each.split(":") for each in split(words.COLLECTIONS))}
_WORDS, _NAMES, _JOBS, _PLACES = split(words.WORDS), split(words.NAMES), split(words.JOBS), split(words.PLACES)

Draw = random.Random
Form = Callable[[Draw], str]


def explain(draw: Draw) -> str:
    form = draw.choice(
        (
            "Explain what {} is in one sentence.",
            "Explain {} to a ten-year-old.",
            "What is {}?",
            "What is {}? Answer in two sentences.",
            "Define {}.",
            "Describe {} briefly.",
            "Why is {} important?",
            "How does {} work?",
            "Write a short paragraph about {}.",
            "Tell me about {}.",
            "Give me three facts about {}.",
            "Give an example of {} in everyday life.",
            "What are the benefits of {}?",
            "What are the main parts of {}?",
            "Write a title for an article about {}.",
            "Write one question that a student could ask about {}.",
            "I have to give a talk about {}. Where do I start?",
            "Summarise what people should know about {}.",
        )
    )
    return form.format(draw.choice(_THINGS))


def compare(draw: Draw) -> str:
    first, second = draw.sample(_THINGS, 2)
    form = draw.choice(
        (
            "What is the difference between {} and {}?",
            "Compare {} and {} in two sentences.",
            "Which is older, {} or {}?",
            "Is {} the same as {}? Answer yes or no and say why.",
        )
    )
    return form.format(first, second)


def advise(draw: Draw) -> str:
    form = draw.choice(
        (
            "How do I {}?",
            "List three tips to {}.",
            "List five ways to {}.",
            "Give me step-by-step instructions to {}.",
            "I want to {}. What should I do first?",
            "What do I need to {}?",
            "What mistakes should I avoid when I {}?",
            "Write a short checklist: {}.",
            "Write a friendly message that encourages someone to {}.",
            "Write a tweet about how to {}.",
        )
    )
    return form.format(draw.choice(_ACTIVITIES))


def fact(draw: Draw) -> str:
    country, city = draw.choice(_CAPITALS)
    word, opposite = draw.choice(_OPPOSITES)
    return draw.choice(
        (
            f"What is the capital of {country}?",
            f"Which country has the capital {city}?",
            f"Is {city} the capital of {country}? Answer yes or no.",
            f"What is the opposite of '{word}'?",
            f"Use the words '{word}' and '{opposite}' in one sentence.",
            f"Give a synonym for '{word}'.",
            f"What colour is {draw.choice(split(words.COLOURS))}?",
            draw.choice(split(words.FACTS)),
            draw.choice(split(words.FACTS)),
            draw.choice(split(words.FACTS)) + " Answer with one word.",
            draw.choice(split(words.FACTS)) + " Explain your answer.",
        )
    )


def collect(draw: Draw) -> str:
    name, items = draw.choice(list(_COLLECTIONS.items()))
    some = draw.sample(items, draw.randint(3, 6))
    stranger = draw.choice(_WORDS)
    mixed = draw.sample([*some, stranger], len(some) + 1)
    return draw.choice(
        (
            f"List {draw.randint(3, 8)} {name}.",
            f"Name {draw.randint(2, 5)} {name} that are not in this list: {', '.join(some)}.",
            f"Sort these {name} alphabetically: {', '.join(some)}.",
            f"How many {name} are in this list: {', '.join(some)}?",
            f"Which of these is not one of the {name}: {', '.join(mixed)}?",
            f"Repeat this list in reverse order: {', '.join(some)}.",
            f"Write these {name} as a numbered list: {', '.join(some)}.",
            f"Write these {name} as a JSON array: {', '.join(some)}.",
            f"What is the first item in this list: {', '.join(some)}?",
            f"What is the last item in this list: {', '.join(some)}?",
            f"Write these words in capital letters: {', '.join(some)}.",
            f"Write one sentence for each of these {name}: {', '.join(some[:3])}.",
        )
    )


def spell(draw: Draw) -> str:
    word = draw.choice(_WORDS)
    return draw.choice(
        (
            f"Spell the word '{word}' letter by letter.",
            f"What is the plural of '{word}'?",
            f"Write the word '{word}' five times.",
            f"Use the word '{word}' in a sentence.",
            f"What does the word '{word}' mean?",
            f"What is the first letter of '{word}'?",
            f"Write a word that rhymes with '{word}'.",
            f"Translate '{word}' into {draw.choice(('French', 'Spanish', 'German', 'Italian'))}.",
            f"Write three words that have to do with '{word}'.",
            f"Repeat after me: {' '.join(draw.sample(_WORDS, draw.randint(3, 6)))}",
        )
    )


def calculate(draw: Draw) -> str:
    a, b = draw.randint(1, 20), draw.randint(1, 20)
    return draw.choice(
        (
            f"What is {a} + {b}?",
            f"What is {a + b} - {b}?",
            f"What is {a % 10} times {b % 10}?",
            f"Which number is larger, {a} or {a + b}?",
            f"Is {a} an even number?",
            f"Count from {a} to {a + draw.randint(4, 9)}.",
            f"Sort these numbers: {', '.join(map(str, draw.sample(range(1, 50), 5)))}.",
            f"What comes next: {a}, {a + 2}, {a + 4}, {a + 6}?",
            f"{draw.choice(_NAMES)} has {a} apples and gets {b} more. How many are there now?",
            f"A book costs {a} dollars. What do two books cost?",
        )
    )


def passage(draw: Draw) -> tuple[str, dict[str, str]]:
    """A few plain sentences, and the facts in them by name."""
    facts = {
        "name": draw.choice(_NAMES),
        "job": draw.choice(_JOBS),
        "city": draw.choice(_PLACES),
        "day": draw.choice(split(words.DAYS)),
        "month": draw.choice(split(words.MONTHS)),
        "product": draw.choice(split(words.GOODS)),
        "price": f"{draw.randint(5, 95)} dollars",
        "age": str(draw.randint(19, 78)),
        "friend": draw.choice(_NAMES),
        "topic": draw.choice(_THINGS),
        "hour": f"{draw.randint(1, 12)} o'clock",
    }
    sentences = [
        "{name} is {age} years old and works as a {job} in {city}.",
        "On {day}, {name} bought a {product} for {price}.",
        "The {product} arrived in {month}, two weeks after {name} had ordered it.",
        "{friend} called at {hour} and asked whether the {product} was any good.",
        "{name} told {friend} that it had been a good choice.",
        "The meeting in {city} was moved from {day} to the last week of {month}.",
        "In the evening {name} read a long article about {topic}.",
        "The shop in {city} closes at {hour} and is not open on {day}.",
        "It had rained in {city} for most of {month}, so the streets were empty.",
        "{friend} is learning about {topic} and wants to give a talk about it in {month}.",
    ]
    chosen = sorted(draw.sample(range(len(sentences)), draw.randint(2, 4)))
    text = " ".join(sentences[index].format(**facts) for index in chosen)
    return text, {name: value for name, value in facts.items() if value in text}


def read(draw: Draw) -> str:
    text, facts = passage(draw)
    names = [name for name in facts if name not in ("friend", "topic", "hour")] or list(facts)
    wanted = draw.sample(names, min(len(names), draw.randint(1, 3)))
    task = draw.choice(
        (
            "Summarise this text in one sentence.",
            "What is this text about?",
            f"What is the {wanted[0]} in this text?",
            f"Extract these fields as JSON: {', '.join(wanted)}.",
            "List the names of the people in this text.",
            "Copy the first sentence of this text.",
            "Copy this text word for word.",
            "Rewrite this text in simpler words.",
            "Rewrite this text in the present tense.",
            "Write a title for this text.",
            "Turn this text into a list of bullet points.",
            "Write a question that this text answers.",
            "Quote the sentence that says where something happens.",
            "Continue this text with two more sentences.",
        )
    )
    return draw.choice((f"{task}\n\n{text}", f"{text}\n\n{task}", f'{task} "{text}"'))


def classify(draw: Draw) -> str:
    product = draw.choice(split(words.GOODS))
    review = f"The {product} {draw.choice(split(draw.choice((words.PRAISE, words.BLAME, words.PLAIN))))}."
    return draw.choice(
        (
            f"Is this review positive, negative or neutral? {review}",
            f"Classify the sentiment of this sentence: {review}",
            f"Is the customer happy? Answer yes or no. {review}",
            f'Give this review a score from 1 to 5 and say why: "{review}"',
            f"Write a polite answer to this review: {review}",
            f"What product is this review about? {review}",
            f"Write a review of a {product}.",
            f"Is a {draw.choice(_WORDS)} an animal, a plant or a thing?",
            f"Which category fits best, sports, science, food or travel: {draw.choice(_THINGS)}?",
        )
    )


def rewrite(draw: Draw) -> str:
    blunt, remark = draw.choice(split(words.BLUNT)), draw.choice(split(words.REMARKS))
    return draw.choice(
        (
            f"Correct the grammar: {remark}",
            f"Fix the spelling and punctuation of this sentence: {remark}",
            f"Make this sound more polite: {blunt}",
            f"Rewrite this in a friendly tone: {blunt}",
            f"Rewrite this formally: {blunt}",
            f"Write an email that says this: {blunt}",
            f"Turn this into a question: {blunt}",
            f"Say this in other words: {blunt}",
            f"Write a short email to {draw.choice(_NAMES)} about {draw.choice(_THINGS)}.",
            f"Write a short note to {draw.choice(_NAMES)}: I will be late on {draw.choice(split(words.DAYS))}.",
            f"Write an invitation for {draw.choice(_NAMES)}'s birthday party on {draw.choice(split(words.DAYS))} in "
            f"{draw.choice(_PLACES)}.",
        )
    )


def program(draw: Draw) -> str:
    what, language = draw.choice(split(words.FUNCTIONS)), draw.choice(split(words.LANGUAGES))
    snippet = draw.choice(words.SNIPPETS)
    return draw.choice(
        (
            f"Write a {language} function that {what}.",
            f"Write a {language} function that {what}. Only show the code.",
            f"Show me a short {language} program that {what}.",
            f"Write a test for a Python function that {what}.",
            f"Give a name to a function that {what}.",
            f"Write a docstring for a function that {what}.",
            f"What does this code do?\n\n{snippet}",
            f"Add comments to this code:\n\n{snippet}",
            f"Explain this code line by line:\n\n{snippet}",
            f"Rename the variables in this code:\n\n{snippet}",
            f"Repeat this code exactly:\n\n{snippet}",
        )
    )


def format_data(draw: Draw) -> str:
    name, age, city = draw.choice(_NAMES), draw.randint(18, 80), draw.choice(_PLACES)
    job, goods = draw.choice(_JOBS), draw.choice(split(words.GOODS))
    return draw.choice(
        (
            f"Write this as JSON: name {name}, age {age}, city {city}.",
            f"Format as JSON with the keys name and job: {name} is a {job}.",
            f"Write a CSV line for {name}, {age}, {city}.",
            f"Write a Markdown table with the columns name, age and city for {name}, {age}, {city}.",
            f"Make a JSON object for a {goods} that costs {age} dollars.",
            f"Write this as YAML: name {name}, job {job}, city {city}.",
            f"Write an address label for {name} in {city}.",
            f"What is the age in this JSON? {json.dumps({'name': name, 'age': age, 'city': city})}",
            f"What is the city in this JSON? {json.dumps({'name': name, 'city': city, 'job': job})}",
        )
    )


def imagine(draw: Draw) -> str:
    name, job, place = draw.choice(_NAMES), draw.choice(_JOBS), draw.choice(_PLACES)
    word, thing = draw.choice(_WORDS), draw.choice(_THINGS)
    return draw.choice(
        (
            f"Write a short story about a {job} named {name} who finds a {word}.",
            f"Write the first sentence of a story about a {word} in {place}.",
            f"Describe a day in the life of a {job}.",
            f"Write a poem of four lines about a {word}.",
            f"Write a slogan for a {job} from {place}.",
            f"Suggest three names for a shop that sells {draw.choice(split(words.GOODS))}.",
            f"Write a dialogue of two lines between {name} and a {job}.",
            f"What would a {job} say about {thing}?",
            f"Say hello to {name} from {place}.",
            f"Introduce yourself to {name} in two sentences.",
            f"Tell {name} a fun fact about {thing}.",
            f"Ask {name} three questions about {place}.",
        )
    )


FORMS: Sequence[tuple[Form, float]] = (
    (explain, 0.24),
    (compare, 0.05),
    (advise, 0.10),
    (fact, 0.06),
    (collect, 0.08),
    (spell, 0.05),
    (calculate, 0.05),
    (read, 0.13),
    (classify, 0.05),
    (rewrite, 0.06),
    (program, 0.07),
    (format_data, 0.03),
    (imagine, 0.03),
)


def prompts(count: int, seed: int) -> list[dict[str, Any]]:
    """That many different requests. Forms come by their weights; one that is exhausted leaves its share to others."""
    draw = random.Random(seed)
    makers, weights = zip(*FORMS, strict=True)
    seen: set[str] = set()
    lines: list[dict[str, Any]] = []
    while len(lines) < count:
        text = draw.choices(makers, weights)[0](draw)
        if text in seen:
            continue
        seen.add(text)
        if draw.random() < _SYSTEM_SHARE:
            system = {"role": "system", "content": draw.choice(words.SYSTEMS)}
            lines.append({"messages": [system, {"role": "user", "content": text}]})
        else:
            lines.append({"prompt": text})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the prompts that smollm2-small is distilled on, as JSON lines.")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    arguments = parser.parse_args()
    for line in prompts(arguments.count, arguments.seed):
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
