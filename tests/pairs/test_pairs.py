"""Every two values of any two flags in one request: the promises of each hold, with drafts and without, streamed and
whole, and the streams that run in the same batch are unchanged."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, starmap

import orjson
import pytest

from engine.text.processor import TextProcessor
from tests.fuzz.bodies import NEIGHBOURS
from tests.fuzz.campaign import fault_of
from tests.fuzz.serving import KEY, Served, serving
from tests.fuzz.wire import Answer, Sent, exchange
from tests.pairs.covering import Row, Value, covered_by, covering_rows, pairs_of
from tests.pairs.flags import CHAT, COMPLETION, Flag, fields_of
from tests.pairs.promises import Asked, every_answer
from tests.pairs.reading import Choice, Reply, reply_of

AT_ONCE = 8
WITH_TOOLS = 640
"""Tokens: a prompt that says which tools there are takes some 500."""
UNIQUE = count()


@dataclass(frozen=True)
class Matrix:
    """The flags of one route, and rows that name a value of each."""

    path: str
    factors: Mapping[str, Sequence[Flag]]

    @property
    def sizes(self) -> list[int]:
        return [len(flags) for flags in self.factors.values()]

    def flag(self, value: Value) -> Flag:
        return list(self.factors.values())[value[0]][value[1]]

    def allowed(self, one: Value, other: Value) -> bool:
        a, b = self.flag(one), self.flag(other)
        return b.name not in a.excludes and a.name not in b.excludes

    def asked(self, flags: Sequence[Flag], text: TextProcessor) -> Asked:
        body = {name: value for flag in flags for name, value in flag.fields.items()}
        return Asked(frozenset(flag.name for flag in flags), fields_of(body, f"s{next(UNIQUE)}"), text)

    def nearly_alone(self) -> list[Row]:
        """Each value with all that can be seen of it, log-probabilities, and nothing else that would hide it."""
        logprobs = list(self.factors).index("logprobs")
        return [
            tuple(x if f == factor else last if f == logprobs else 0 for f in range(len(self.sizes)))
            for last in [self.sizes[logprobs] - 1]
            for factor, size in enumerate(self.sizes)
            for x in range(1, size)
        ]

    def turned(self, row: Sequence[int]) -> list[int]:
        """The same by the other model, streamed where it was whole: it has to say the same."""
        other = {"model": {0: 1, 1: 0}, "stream": {0: 2, 1: 0, 2: 0}}
        turned = [other.get(name, {}).get(value, value) for name, value in zip(self.factors, row, strict=True)]
        if not all(starmap(self.allowed, covered_by(tuple(turned)))):
            turned[list(self.factors).index("stream")] = row[list(self.factors).index("stream")]
        return turned


MATRICES = [Matrix("/v1/chat/completions", CHAT), Matrix("/v1/completions", COMPLETION)]
ids = pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("pairs"), window=WITH_TOOLS) as served:
        yield served


async def ask(served: Served, path: str, body: Mapping[str, object]) -> Answer:
    answer = await exchange(served.port, KEY, Sent("POST", path, orjson.dumps(body)))
    assert answer is not None
    return answer


async def ask_for(served: Served, matrix: Matrix, row: Sequence[int], findings: list[str]) -> Reply | None:
    """The reply, held against every promise."""
    flags = [matrix.flag(value) for value in enumerate(row)]
    asked = matrix.asked(flags, served.engine.models["tiny"].text)
    try:
        reply = reply_of(await ask(served, matrix.path, asked.body))
    except (AssertionError, ValueError, OSError) as error:
        findings.append(f"{error!r} for {sorted(asked.names)}")
        return None
    for promise in [every_answer, *(flag.promise for flag in flags)]:
        try:
            promise(asked, reply)
        except (AssertionError, ValueError) as error:
            findings.append(f"{promise.__qualname__}: {error!r} for {sorted(asked.names)}: {reply}")
    return reply


async def ask_both(served: Served, matrix: Matrix, row: Sequence[int], findings: list[str]) -> None:
    turned = matrix.turned(row)
    one = await ask_for(served, matrix, row, findings)
    other = await ask_for(served, matrix, turned, findings)
    flags = [matrix.flag(value) for value in enumerate(row)]
    asked = matrix.asked(flags, served.engine.models["tiny"].text)
    if one is None or other is None or not asked.is_repeatable:
        return
    if not all(map(same, one.choices, other.choices)):
        findings.append(f"{sorted(asked.names)} says {one.choices} and turned {other.choices}")


def same(one: Choice, other: Choice) -> bool:
    """Of what is written exactly, of log-probabilities as far as a batch's shape lets them be the same."""
    written = [(each.text, each.finish_reason, each.tokens, each.calls) for each in (one, other)]
    likely = zip(one.logprobs, other.logprobs, strict=True)
    return written[0] == written[1] and all(a == b or a == pytest.approx(b, abs=1e-3) for a, b in likely)


async def neighbours(served: Served) -> list[list[str]]:
    answers = await asyncio.gather(*(ask(served, path, body) for path, body in NEIGHBOURS))
    return [answer.texts() if answer.status == 200 else [answer.body.decode()] for answer in answers]


async def in_company(served: Served, matrix: Matrix, rows: Sequence[Sequence[int]]) -> list[str]:
    """Findings in all rows, `AT_ONCE` at a time, and in the streams that run with them."""
    findings: list[str] = []
    alone = await neighbours(served)
    for start in range(0, len(rows), AT_ONCE):
        beside = asyncio.create_task(neighbours(served))
        await asyncio.gather(*(ask_both(served, matrix, row, findings) for row in rows[start : start + AT_ONCE]))
        if await beside != alone:
            findings.append(f"neighbours of rows from {start} say {await beside}, alone {alone}")
    return findings


@ids
def test_every_pair_is_answered_as_both_promise(served: Served, matrix: Matrix) -> None:
    rows = [*matrix.nearly_alone(), *covering_rows(matrix.sizes, matrix.allowed)]
    findings = asyncio.run(in_company(served, matrix, rows))
    assert findings == []
    assert served.wait_until_idle() == {}


@ids
def test_every_pair_that_excludes_itself_is_refused(served: Served, matrix: Matrix) -> None:
    neutral = [matrix.flag((factor, 0)) for factor in range(len(matrix.sizes))]
    refused = {pair for pair in pairs_of(matrix.sizes, lambda *_: True) if not matrix.allowed(*pair)}
    assert refused

    async def run() -> None:
        for pair in sorted(refused):
            flags = neutral.copy()
            for value in pair:
                flags[value[0]] = matrix.flag(value)
            asked = matrix.asked(flags, served.engine.models["tiny"].text)
            answer = await ask(served, matrix.path, asked.body)
            assert answer.status == 400, (asked.names, answer.body)
            assert fault_of(Sent("POST", matrix.path), answer) is None

    asyncio.run(run())


@ids
def test_rows_cover_every_allowed_pair_and_no_other(matrix: Matrix) -> None:
    rows = covering_rows(matrix.sizes, matrix.allowed)
    covered = set[object]().union(*(covered_by(row) for row in rows))
    assert covered == pairs_of(matrix.sizes, matrix.allowed)
    assert len(covered) > 500
    assert len(rows) < len(covered) / 10
