"""Covering arrays of strength two: few rows in which every allowed pair of values stands together."""

from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random

Value = tuple[int, int]
"""A factor's number, and its value's number."""
Pair = tuple[Value, Value]
Row = tuple[int, ...]

_TRIES = 8
"""Rows that are made for each one that is taken."""


def pairs_of(sizes: Sequence[int], allowed: Callable[[Value, Value], bool]) -> set[Pair]:
    """All pairs of values of two factors, the first factor first."""
    return {
        ((a, x), (b, y))
        for a, b in combinations(range(len(sizes)), 2)
        for x in range(sizes[a])
        for y in range(sizes[b])
        if allowed((a, x), (b, y))
    }


def covered_by(row: Row) -> set[Pair]:
    return set(combinations(enumerate(row), 2))


def covering_rows(sizes: Sequence[int], allowed: Callable[[Value, Value], bool], seed: int = 0) -> list[Row]:
    """Rows in which every allowed pair stands, and no other. A factor's value 0 goes with everything.

    Greedy: each row begins with a pair that is missing yet, and takes factor by factor the value that brings most.
    """
    random = Random(seed)
    missing = pairs_of(sizes, allowed)
    rows = []
    while missing:
        first = min(missing)
        row = max(
            (_row(sizes, allowed, first, missing, random) for _ in range(_TRIES)), key=lambda r: _gain(r, missing)
        )
        missing -= covered_by(row)
        rows.append(row)
    return rows


def _gain(row: Row, missing: set[Pair]) -> int:
    return len(covered_by(row) & missing)


def _row(
    sizes: Sequence[int], allowed: Callable[[Value, Value], bool], first: Pair, missing: set[Pair], random: Random
) -> Row:
    chosen = dict(first)
    factors = [factor for factor in range(len(sizes)) if factor not in chosen]
    random.shuffle(factors)
    for factor in factors:
        fitting = [
            x for x in range(sizes[factor]) if all(allowed(*_ordered((factor, x), other)) for other in chosen.items())
        ]
        gains = [sum(_ordered((factor, x), other) in missing for other in chosen.items()) for x in fitting]
        best = max(gains)
        chosen[factor] = random.choice([x for x, gain in zip(fitting, gains, strict=True) if gain == best])
    return tuple(chosen[factor] for factor in range(len(sizes)))


def _ordered(one: Value, other: Value) -> Pair:
    return (one, other) if one < other else (other, one)
