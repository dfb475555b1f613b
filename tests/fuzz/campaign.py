"""Rounds of hostile requests during streams of known text."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import orjson

from gateway.http.anthropic_errors import is_anthropic
from tests.fuzz.bodies import NEIGHBOURS, READS, VALID
from tests.fuzz.mutation import as_sent, damaged, mutated
from tests.fuzz.serving import KEY, Served, open_files
from tests.fuzz.wire import Answer, Sent, exchange

REQUESTS_A_ROUND = 32
AT_ONCE = 6
ENVELOPE = ["message", "type", "param", "code"]
ALLOWED = frozenset((200, 400, 404, 405, 409, 413, 429))


def request_of(random: Random) -> Sent:
    """One hostile request. Mostly a mutant; else damaged bytes, a strange URL, or a client that does not stay."""
    path, body = random.choice(VALID)
    match random.random():
        case chance if chance < 0.08:
            return Sent("POST", path, damaged(as_sent(body), random))
        case chance if chance < 0.16:
            return Sent("POST", path, as_sent(body), read_bytes=random.choice((1, 300, 2000)))
        case chance if chance < 0.22:
            target = damaged(random.choice(READS).encode(), random).decode("latin-1")
            method = random.choice(("GET", "GET", "DELETE", "HEAD", "PUT", "OPTIONS"))
            return Sent(method, "/" + "".join(each for each in target[1:] if "!" <= each <= "~"))
        case _:
            return Sent("POST", path, as_sent(mutated(body, random)))


def fault_of(sent: Sent, answer: Answer) -> str | None:
    """The fault of an answer by itself; None where it has none."""
    if answer.status not in ALLOWED:
        return f"status {answer.status}"
    if not answer.headers.get("x-request-id"):
        return "no x-request-id"
    if sent.method == "HEAD":
        return None
    try:
        if answer.status != 200:
            is_messages = is_anthropic(sent.target.partition("?")[0])
            return _fault_of_anthropics(answer) if is_messages else _fault_of_envelope(answer)
        if answer.is_stream:
            return "an error in a stream" if any("error" in event for event in answer.events()) else None
        if answer.headers["content-type"] == "application/json":
            orjson.loads(answer.body)
    except ValueError as error:
        return str(error)
    return None


def _fault_of_envelope(answer: Answer) -> str | None:
    body = orjson.loads(answer.body)
    if list(body) != ["error"] or [name for name in body["error"] if name != "limit"] != ENVELOPE:
        return "not the envelope"
    error = body["error"]
    is_right = (
        isinstance(error["message"], str)
        and bool(error["message"])
        and isinstance(error["type"], str)
        and (error["param"] is None or isinstance(error["param"], str))
        and isinstance(error["code"], str)
    )
    return None if is_right else f"the envelope says {error}"


def _fault_of_anthropics(answer: Answer) -> str | None:
    body = orjson.loads(answer.body)
    if list(body) != ["type", "error", "request_id"] or list(body["error"]) != ["type", "message"]:
        return "not Anthropic's envelope"
    is_right = body["type"] == "error" and body["request_id"] == answer.headers["request-id"]
    return None if is_right and body["error"]["message"] else f"the envelope says {body}"


@dataclass(slots=True)
class Campaign:
    """`findings` are what went wrong, each with its round: with the same seed it is the same requests again."""

    served: Served
    seed: int
    findings: list[str] = field(default_factory=list)
    statuses: Counter[int | None] = field(default_factory=Counter)
    _alone: list[list[str]] = field(default_factory=list)
    _files: Counter[str] = field(default_factory=Counter)

    async def begin(self) -> None:
        """See what the neighbours say alone, and that the bodies to be spoilt are valid."""
        self._alone = [await self._texts(sent) for sent in self._neighbours()]
        for path, body in VALID:
            answer = await exchange(self.served.port, KEY, Sent("POST", path, orjson.dumps(body)))
            assert answer.status == 200, answer.body
        for target in READS:
            await exchange(self.served.port, KEY, Sent("GET", target))
        await asyncio.to_thread(self.served.wait_until_idle)
        self._files = open_files() + Counter(pipe=2)  # of the second process that tries grammars out, when it comes

    async def round(self, number: int) -> None:
        random = Random(f"{self.seed}/{number}")
        hostile = [request_of(random) for _ in range(REQUESTS_A_ROUND)]
        streams = [asyncio.create_task(self._texts(sent)) for sent in self._neighbours()]
        gate = asyncio.Semaphore(AT_ONCE)

        def find(what: str) -> None:
            self.findings.append(f"round {number}: {what}")

        await asyncio.gather(*(self._send(sent, gate, find) for sent in hostile))
        for name, stream, alone in zip(NEIGHBOURS, streams, self._alone, strict=True):
            try:
                texts = await stream
            except (OSError, ValueError, KeyError, TimeoutError) as error:
                find(f"the neighbour {name} is not answered: {error!r}")
            else:
                if texts != alone:
                    find(f"the neighbour {name} says {texts}, alone {alone}")
        held = await asyncio.to_thread(self.served.wait_until_idle)
        if held:
            find(f"left over: {held}")

    def end(self) -> None:
        """See that no more files are open than at the beginning."""
        if more := open_files() - self._files:
            self.findings.append(f"files are left open: {dict(more)}")

    async def _send(self, sent: Sent, gate: asyncio.Semaphore, find: Callable[[str], None]) -> None:
        async with gate:
            try:
                answer = await exchange(self.served.port, KEY, sent)
            except (OSError, ValueError, TimeoutError) as error:
                find(f"{error!r} for {_shown(sent)}")
                return
        self.statuses[None if answer is None else answer.status] += 1
        fault = None if answer is None else fault_of(sent, answer)
        if answer is not None and fault is not None:
            find(f"{fault} for {_shown(sent)}: {answer.body[-500:]!r}")

    async def _texts(self, sent: Sent) -> list[str]:
        answer = await exchange(self.served.port, KEY, sent)
        return answer.texts()

    def _neighbours(self) -> list[Sent]:
        return [Sent("POST", path, orjson.dumps(body)) for path, body in NEIGHBOURS]


def _shown(sent: Sent) -> str:
    return f"{sent.method} {sent.target} {(sent.body or b'')[:2000]!r}"
