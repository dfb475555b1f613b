"""Requests whose answers repeat much of what they are given: to extract, to quote, to rewrite with little changed."""

PASSAGES = (
    "The harbour of Vellmar was built in 1874, when the old pier could no longer hold the grain ships. Its first "
    "master, Ottilie Brandt, kept a log of every vessel: name, flag, cargo and the depth of its keel. The log fills "
    "eleven volumes and is kept in the town library. In 1931 a storm broke the northern wall, and for two winters no "
    "ship could enter. The wall was rebuilt with granite from the quarry at Solen, and it has stood ever since.",
    "A beekeeper opens the hive on a warm day with little wind. She lifts each frame slowly, looks for eggs and for "
    "the queen, and notes how much honey has been capped. If the bees have too little room, she adds a box on top. If "
    "she finds queen cells, the colony may be about to swarm, and she divides it in two. After an hour at most the "
    "hive is closed again, so that the brood does not cool.",
    "def mean_of_rows(table):\n    result = []\n    for row in table:\n        total = 0\n        for value in row:\n"
    "            total = total + value\n        result.append(total / len(row))\n    return result\n\n"
    "def mean_of_columns(table):\n    result = []\n    for index in range(len(table[0])):\n        total = 0\n"
    "        for row in table:\n            total = total + row[index]\n        result.append(total / len(table))\n"
    "    return result",
    "Order 5521: 12 boxes of nails, 40 mm, to be sent to Marta Kessel, Lindenweg 8, Arnsfeld. Order 5522: 3 ladders of "
    "aluminium, to be sent to Jonas Petri, Am Markt 2, Hollern. Order 5523: 20 litres of white paint, to be fetched by "
    "Ines Falk. Order 5524: 6 window frames of oak, to be sent to the school at Birkenau, Schulstrasse 1. Order 5525: "
    "1 circular saw, to be fetched by Marta Kessel.",
)

TASKS = (
    "Repeat the following text word for word:\n\n{}",
    "Quote the first half of this text exactly, then its last sentence:\n\n{}",
    "Correct the spelling of this text. Change nothing that is right:\n\n{}",
)


def copying_prompts() -> list[str]:
    """One for each passage and task, passage by passage."""
    return [task.format(passage) for passage in PASSAGES for task in TASKS]
